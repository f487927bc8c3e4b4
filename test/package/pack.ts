/** The package as it would be published, built and packed beside the tree, and a project outside it that has it installed. */
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { root } from "../house/sources.ts";

export interface Packed {
  readonly tarball: string;
  /** The package's own folder as it is installed. */
  readonly installed: string;
  /** A project that depends on it. */
  readonly project: string;
}

interface PackageJson {
  readonly dependencies: Readonly<Record<string, string>>;
  readonly files: readonly string[];
}

const bin = (name: string): string => join(root, "node_modules", ".bin", name);

/** Says what a command printed when it fails. */
export function run(command: string, args: readonly string[], cwd: string): string {
  try {
    return execFileSync(command, [...args], { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  } catch (error) {
    const { stdout = "", stderr = "" } = error as { stdout?: string; stderr?: string };
    throw new Error(`${command} ${args.join(" ")} failed\n${stdout}\n${stderr}`, { cause: error });
  }
}

export const tsc = (args: readonly string[], cwd: string): string => run(bin("tsc"), args, cwd);
export const attw = (args: readonly string[], cwd: string): string => run(bin("attw"), args, cwd);

/** In a folder of its own: a build in the tree would be seen by whoever works in it. */
export function pack(): Packed {
  const folder = mkdtempSync(join(tmpdir(), "capstan-package-"));
  const stage = join(folder, "stage");
  mkdirSync(stage);
  const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as PackageJson;
  for (const name of ["package.json", "README.md", "LICENSE", ...manifest.files.filter((file) => file !== "dist")])
    cpSync(join(root, name), join(stage, name), { recursive: true });
  tsc(["-p", join(root, "tsconfig.build.json"), "--outDir", join(stage, "dist")], root);
  run("npm", ["pack", "--ignore-scripts", "--offline", "--pack-destination", folder], stage);
  const tarball = join(folder, readdirSync(folder).find((name) => name.endsWith(".tgz")) ?? "");

  const project = join(folder, "project");
  const modules = join(project, "node_modules");
  const installed = join(modules, "capstan");
  mkdirSync(installed, { recursive: true });
  run("tar", ["-xzf", tarball, "--strip-components", "1", "-C", installed], folder);
  // What a registry would bring, without the network: the same versions, from the tree.
  for (const name of [...Object.keys(manifest.dependencies), "@types/node", "@types/pg"]) {
    mkdirSync(dirname(join(modules, name)), { recursive: true });
    symlinkSync(join(root, "node_modules", name), join(modules, name));
  }
  writeFileSync(join(project, "package.json"), JSON.stringify({ name: "service", private: true, type: "module" }));
  return { tarball, installed, project };
}
