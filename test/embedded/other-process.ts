/** Starts the server of the folder in its argument, reports it in one line and stays, for tests that kill it. */
import { embeddedPostgresStatus } from "../../src/embedded/index.ts";
import { startQuickly } from "./support.ts";

const dir = process.argv[2] ?? "";
const { url, port, dataDir, startedByUs, version } = await startQuickly({ dir });
const { pid } = await embeddedPostgresStatus(dir);
console.log(JSON.stringify({ url, port, pid, dataDir, startedByUs, version }));
setInterval(() => {}, 60_000);
