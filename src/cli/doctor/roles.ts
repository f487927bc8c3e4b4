/** Roles of applications: may one enqueue without reading journals, and does each pin hold? Pure: facts in, findings out. */
import type { RoleFacts } from "../../store/role-facts.ts";
import { finding, ok, plural, type Finding } from "./finding.ts";

export function judgeRoles({ enqueuer_exists: exists, enqueuer_reads: reads, pins }: RoleFacts): Finding[] {
  const gone = pins.filter((pin) => !pin.exists).map(({ role }) => role);
  const open = pins.filter((pin) => pin.exists && pin.reads_tables).map(({ role }) => role);
  const findings: Finding[] = [];
  if (!exists) {
    findings.push(
      finding(
        "info",
        "enqueuer_role",
        "there is no role for applications that only enqueue",
        "whoever enqueues can read journals, too",
        "let a user who may create roles run capstan migrate once",
      ),
    );
  } else if (reads) {
    findings.push(
      finding(
        "warning",
        "enqueuer_role",
        "the role that ends in _enqueuer can read events",
        "it is meant to call functions and to read nothing",
        "take from it what was granted beside capstan migrate",
      ),
    );
  } else findings.push(ok("enqueuer_role", "applications can enqueue without reading journals"));
  if (gone.length > 0) {
    findings.push(
      finding(
        "warning",
        "role_pins",
        `pinned to a tenant and no role: ${gone.join(", ")}`,
        "a role that was renamed reaches every tenant under its new name",
        "pin the new name (select capstan.pin_role), and unpin the old one",
      ),
    );
  }
  if (open.length > 0) {
    findings.push(
      finding(
        "warning",
        "role_pins",
        `pinned to a tenant and able to read tables: ${open.join(", ")}`,
        "the pin holds for functions, not for tables",
        "let it be a member of the role that ends in _enqueuer alone",
      ),
    );
  }
  if (gone.length + open.length === 0)
    findings.push(ok("role_pins", pins.length === 0 ? "no role is pinned to a tenant" : `${plural(pins.length, "role")} pinned: ${pins.map(({ role }) => role).join(", ")}`));
  return findings;
}
