import { createHash } from "node:crypto";
import { chmod, mkdir, readFile, realpath, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { OsIdentity } from "./command.ts";
import { DataForeignError, UserUnavailableError } from "./errors.ts";
import { canReach, ensureUnprivilegedUser, isRoot } from "./os-user.ts";

/**
 * Where one embedded server lives and who runs it.
 *
 * Usually everything is in the wanted folder. When we are root and that folder is closed to the server's user (a clone
 * under /root), it is in a shared folder instead, under a name made from the wanted path, and the wanted folder
 * keeps a pointer to it.
 */
export interface Placement {
  /** what the caller asked for; holds the lock and perhaps the pointer */
  readonly wantedDir: string;
  /** holds data, log and port */
  readonly home: string;
  readonly dataDir: string;
  readonly logFile: string;
  readonly portFile: string;
  readonly lockFile: string;
}

export interface PreparedPlacement extends Placement {
  /** undefined: the server runs as ourselves */
  readonly identity: OsIdentity | undefined;
  /** where a copy of the binaries may be kept so that the server's user can run them */
  readonly copyRoot: string;
}

/** Reads where the server of `dir` lives, or would live, without making anything. */
export async function findPlacement(dir: string): Promise<Placement> {
  const wantedDir = resolve(dir);
  return describePlacement(wantedDir, (await readPointer(wantedDir)) ?? wantedDir);
}

/** Decides user and place, and makes the folders. The wanted folder must exist. */
export async function preparePlacement(dir: string): Promise<PreparedPlacement> {
  const found = await findPlacement(dir);
  const owner = await stat(found.dataDir).catch(() => undefined);
  if (!isRoot()) {
    if (owner && owner.uid !== process.getuid?.()) throw new DataForeignError(found.dataDir, owner.uid);
    return { ...found, identity: undefined, copyRoot: found.home };
  }
  // Data made before we were root stays with whoever made it: Postgres insists on running as the owner.
  const identity = owner && owner.uid !== 0 ? { uid: owner.uid, gid: owner.gid } : await ensureUnprivilegedUser();
  const sharedRoot = await makeSharedRoot(identity);
  const isElsewhere = found.home !== found.wantedDir;
  if (!isElsewhere && (owner || (await canReach(identity, [found.wantedDir])))) {
    return { ...found, identity, copyRoot: sharedRoot };
  }
  const home = isElsewhere ? found.home : join(sharedRoot, `postgres-${await hashPath(found.wantedDir)}`);
  await makeOpenFolder(home);
  await writeFile(pointerFile(found.wantedDir), `${JSON.stringify({ home }, null, 2)}\n`);
  return { ...describePlacement(found.wantedDir, home), identity, copyRoot: sharedRoot };
}

function describePlacement(wantedDir: string, home: string): Placement {
  return {
    wantedDir,
    home,
    dataDir: join(home, "data"),
    logFile: join(home, "server.log"),
    portFile: join(home, "port"),
    lockFile: join(wantedDir, "lock"),
  };
}

function pointerFile(wantedDir: string): string {
  return join(wantedDir, "location.json");
}

async function readPointer(wantedDir: string): Promise<string | undefined> {
  const text = await readFile(pointerFile(wantedDir), "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  return (JSON.parse(text) as { home?: string }).home;
}

/** /var/lib first: only root writes there, so nobody can lay a trap under the predictable name. */
async function makeSharedRoot(identity: OsIdentity): Promise<string> {
  const tried: string[] = [];
  for (const candidate of ["/var/lib/capstan", "/var/tmp/capstan", join(tmpdir(), "capstan")]) {
    try {
      await makeOpenFolder(candidate);
      const { uid } = await stat(candidate);
      if (uid === 0 && (await canReach(identity, [candidate]))) return candidate;
    } catch {
      // read-only, or a parent that is no folder: the next one
    }
    tried.push(candidate);
  }
  throw new UserUnavailableError(`none of ${tried.join(", ")} can be made readable for it`);
}

/** Whatever the umask says: another user has to pass through. */
async function makeOpenFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  await chmod(folder, 0o755);
}

async function hashPath(path: string): Promise<string> {
  return createHash("sha256")
    .update(await realpath(path))
    .digest("hex")
    .slice(0, 16);
}
