import type { Command } from "commander";
import { migrationStatus } from "../store/migrate.ts";
import { DEFAULT_API_PORT, openNote, startApiProcess } from "./api-process.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { CliError, exitCodes } from "./exit.ts";
import { parseCount } from "./format.ts";
import { aborted } from "./stop-signals.ts";

interface ApiFlags {
  readonly host: string;
  readonly port: number;
  readonly rate?: number;
  readonly burst?: number;
}

export function addApi(program: Command): void {
  addCommand(program, "api", {
    summary: "serve the HTTP API until it is stopped",
    description:
      "Serves the HTTP API, its document (/openapi.json, readable at /docs), streams of events, and the MCP server at /mcp. Any number of these may serve one database. Without tokens it listens on this machine only; capstan tokens create makes the first. SIGTERM or Ctrl-C ends streams, answers what is under way, and exits 0.",
    examples: ["api", "api --host 0.0.0.0 --port 8080"],
  })
    .option("--host <address>", "where to listen; other than this machine's own only once there are tokens", "127.0.0.1")
    .option("--port <n>", "0: any that is free", parseCount("--port", { min: 0, max: 65_535 }), DEFAULT_API_PORT)
    .option("--rate <n>", "requests per second of one token that this process takes (default: 200)", parseCount("--rate", { min: 1, max: 1_000_000 }))
    .option("--burst <n>", "so many at once (default: 2000)", parseCount("--burst", { min: 1, max: 1_000_000 }))
    .action(
      action(async (out, { host, port, rate, burst }: ApiFlags) =>
        withDatabase(
          out,
          async ({ url, directUrl, config, named, signal }) => {
            const { applied, known } = await migrationStatus({ connectionString: directUrl, names: config.names });
            if (applied < known)
              throw new CliError("NOT_MIGRATED", `the schema is behind (${applied} of ${known} migrations); run: capstan migrate`, { exitCode: exitCodes.notMigrated });
            const rateLimit = { ...(rate === undefined ? {} : { perSecond: rate }), ...(burst === undefined ? {} : { burst }) };
            const api = await startApiProcess({ url, directUrl, config, named, host, port, rateLimit });
            if (out.isJson) await out.value({ event: "ready", pid: process.pid, url: api.url, tokens: !api.isOpen });
            else await out.line(`api  ${api.url}  (readable at ${api.url}/docs); Ctrl-C stops it`);
            const note = openNote(api.isOpen);
            if (note !== undefined) out.note(note);
            await aborted(signal);
            await api.stop();
            if (out.isJson) await out.value({ event: "stopped" });
            return exitCodes.ok;
          },
          { handlesStop: true },
        ),
      ),
    );
}
