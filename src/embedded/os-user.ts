import { runCommand, type CommandResult, type OsIdentity } from "./command.ts";
import { UserUnavailableError } from "./errors.ts";

/** The distribution's own user first: it exists wherever a Postgres package was ever installed. */
const preferredUsers = ["postgres", "capstan"] as const;

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/**
 * An unprivileged user to run the server as, made when none of `names` exists (the last of them). Only for root.
 * Throws `EMBEDDED_USER_UNAVAILABLE` where users cannot be made or used, as in a container with a single user id.
 */
export async function ensureUnprivilegedUser(names: readonly string[] = preferredUsers): Promise<OsIdentity> {
  const found = (await findFirstUser(names)) ?? (await createUser(names.at(-1) ?? "capstan", names));
  const probe = await runCommand("/bin/sh", ["-c", "exit 0"], { identity: found }).catch((error: unknown) => {
    throw new UserUnavailableError("this environment does not let root become another user", { cause: error });
  });
  if (probe.exitCode !== 0) throw new UserUnavailableError("the other user cannot run a program here");
  return found;
}

/** Whether a user may read, and enter or execute, every one of `paths`. Asked of the kernel, so ACLs count as well. */
export async function canReach(identity: OsIdentity | undefined, paths: readonly string[]): Promise<boolean> {
  const script = 'for path in "$@"; do test -r "$path" && test -x "$path" || exit 1; done';
  const { exitCode } = await runCommand("/bin/sh", ["-c", script, "sh", ...paths], { identity });
  return exitCode === 0;
}

async function findFirstUser(names: readonly string[]): Promise<OsIdentity | undefined> {
  for (const name of names) {
    const identity = await findUser(name);
    if (identity) return identity;
  }
  return undefined;
}

async function findUser(name: string): Promise<OsIdentity | undefined> {
  const uid = await readId(["-u", name]);
  const gid = await readId(["-g", name]);
  return uid === undefined || gid === undefined || uid === 0 ? undefined : { uid, gid };
}

/** Node has no look-up of users by name; `id` asks the system's own directory, LDAP included. */
async function readId(args: readonly string[]): Promise<number | undefined> {
  const { exitCode, lines } = await runCommand("id", args);
  const id = Number(lines[0]);
  return exitCode === 0 && Number.isInteger(id) ? id : undefined;
}

async function createUser(name: string, names: readonly string[]): Promise<OsIdentity> {
  let made: CommandResult;
  try {
    made = await runCommand("useradd", ["--system", "--user-group", "--no-create-home", "--shell", "/bin/false", name]);
  } catch (error) {
    throw new UserUnavailableError(`none of ${names.join(", ")} exists and there is no useradd`, { cause: error });
  }
  // Asked again whatever useradd said: a second start at the same moment may have made it.
  const identity = await findUser(name);
  if (identity) return identity;
  throw new UserUnavailableError(`useradd ${name} failed: ${made.lines.join(" ")}`);
}
