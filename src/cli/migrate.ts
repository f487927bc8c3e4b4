import type { Command } from "commander";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";

export function addMigrate(program: Command): void {
  addCommand(program, "migrate", {
    summary: "bring the database to this version's schema",
    description: "Brings the database to this version's schema: forward only, safe while workers run, safe from several places at once.",
    examples: ["migrate", "migrate --check   # changes nothing; exit 3 when the schema is behind"],
  })
    .option("--check", "say whether migrations are missing, and change nothing")
    .action(
      action(async (out, { check }: { check?: boolean }) =>
        withDatabase(
          out,
          async ({ directUrl, config }) => {
            const { migrate, migrationStatus } = await import("../store/migrate.ts");
            const options = { connectionString: directUrl, names: config.names };
            if (check === true) {
              const { applied, known } = await migrationStatus(options);
              const status = applied < known ? "behind" : applied > known ? "ahead" : "current";
              const texts = {
                behind: `the schema is behind: ${applied} of ${known} migrations are applied; run: capstan migrate`,
                ahead: `the schema is ahead: it has ${applied} migrations, this version knows ${known}; nothing to do, but use a newer version soon`,
                current: `the schema is current: ${applied} migrations`,
              };
              if (out.isJson) await out.value({ status, applied, known });
              else await out.line(texts[status]);
              return status === "behind" ? exitCodes.notMigrated : exitCodes.ok;
            }
            const report = await migrate({ ...options, log: (line) => out.note(line) });
            const roles =
              report.roles.kind === "roles" ? `roles ${report.roles.owner}, ${report.roles.app} and ${report.roles.enqueuer}` : `one role only (${report.roles.reason})`;
            if (out.isJson) await out.value({ server_version: report.serverVersion, applied: report.applied, known: report.known, roles: report.roles });
            else
              await out.line(
                `Postgres ${report.serverVersion}: ${report.applied === 0 ? "nothing to do," : `applied ${report.applied} migrations,`} ${report.known} in all; ${roles}`,
              );
            return exitCodes.ok;
          },
          { embedded: check === true ? "existing" : "create" },
        ),
      ),
    );
}
