/** The program of guardian.ts: waits for the end of its input, then removes what its argument names. */
import { deleteEmbeddedPostgres } from "../embedded/index.ts";
import { removeLabelledContainers } from "./docker.ts";
import type { GuardedServer } from "./guardian.ts";

const server = JSON.parse(process.argv[2] ?? "{}") as GuardedServer;

for await (const _ of process.stdin) {
  // nothing is ever written
}
if (server.kind === "embedded") await deleteEmbeddedPostgres(server.dir);
if (server.kind === "container") await removeLabelledContainers(server.docker, server.label, server.value);
