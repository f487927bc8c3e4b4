import { userInfo } from "node:os";

/** Who a command acts for, as journal and audit log have it: the user of this machine. In a container the user may have no name. */
export function actorName(): string {
  try {
    return userInfo().username || "cli";
  } catch {
    return "cli";
  }
}
