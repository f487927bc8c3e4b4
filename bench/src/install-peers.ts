/** Peers are dependencies of this folder alone; they are fetched when a benchmark first needs them. */
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("..", import.meta.url));

export async function ensurePeers(): Promise<ReadonlyMap<string, string>> {
  const { dependencies } = JSON.parse(await readFile(`${folder}package.json`, "utf8")) as { dependencies: Record<string, string> };
  const missing = Object.keys(dependencies).filter((name) => !existsSync(`${folder}node_modules/${name}/package.json`));
  if (missing.length > 0) {
    console.log(`installing the peers into bench/node_modules once (${missing.join(", ")}) …`);
    const { status } = spawnSync("npm", ["ci", "--no-audit", "--no-fund", "--ignore-scripts"], { cwd: folder, stdio: "inherit", shell: process.platform === "win32" });
    if (status !== 0) throw new Error("the peers could not be installed; `npm ci` in bench/ says why, or leave them out with --only ours,gw");
  }
  return new Map(Object.entries(dependencies));
}
