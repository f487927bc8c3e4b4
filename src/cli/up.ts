import type { Command } from "commander";
import { DEFAULT_API_PORT } from "./api-process.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { invocation } from "./invocation.ts";
import { factLines } from "./table.ts";
import { aborted } from "./stop-signals.ts";
import { addWorkerOptions } from "./worker.ts";
import { parseCount } from "./format.ts";
import type { WorkerFlags, WorkerProcess } from "./worker-process.ts";

export function addUp(program: Command): void {
  const up = addCommand(program, "up", {
    summary: "bring everything up in the foreground",
    description:
      "Brings everything up in the foreground: an embedded Postgres unless DATABASE_URL is set (data under .capstan, kept over restarts), the schema, a worker with the built-in agent auditor and yours, and the HTTP API. Ctrl-C drains and stops all of it; a second one exits at once.",
    examples: ["up", "up --agents ./agents.ts --pretty", "DATABASE_URL=postgresql://app@db/app capstan up"],
  });
  addWorkerOptions(up)
    .option("--host <address>", "where the API listens; other than this machine's own only once there are tokens", "127.0.0.1")
    .option("--port <n>", `port of the API, 0: any that is free (default: ${DEFAULT_API_PORT}, or any if it is in use)`, parseCount("--port", { min: 0, max: 65_535 }))
    .action(
      action(async (out, flags: WorkerFlags & { readonly host: string; readonly port?: number }) =>
        withDatabase(
          out,
          async ({ url, directUrl, config, named, pool, isEmbedded, signal }) => {
            const { migrate } = await import("../store/migrate.ts");
            const { serverVersion } = await migrate({ connectionString: directUrl, names: config.names, log: (line) => out.note(line) });
            const { startWorkerProcess } = await import("./worker-process.ts");
            const { startApiProcess, openNote } = await import("./api-process.ts");
            // First what may fail for want of an address: a worker that has begun takes its time to stop.
            const api = await startApiProcess({ url, directUrl, config, named, host: flags.host, port: flags.port ?? DEFAULT_API_PORT, orAnyPort: flags.port === undefined });
            let worker: WorkerProcess;
            try {
              worker = await startWorkerProcess(out, { url, directUrl, flags, alwaysBuiltIn: true });
            } catch (error) {
              await api.stop();
              throw error;
            }
            const { rows } = await pool.query<{ runs: number; open: number }>(
              named("select count(*)::int as runs, count(*) filter (where state in ('queued', 'running', 'waiting'))::int as open from capstan.runs"),
            );
            const counts = rows[0] ?? { runs: 0, open: 0 };
            if (out.isJson) {
              const server = { version: serverVersion, embedded: isEmbedded, ...(isEmbedded ? { url } : {}) };
              await out.value({
                event: "ready",
                pid: process.pid,
                postgres: server,
                worker_id: worker.workerId,
                pool: worker.pool,
                slots: worker.slots,
                agents: worker.agents,
                api: api.url,
                ...counts,
              });
            } else {
              const facts = factLines([
                ["postgres", `${serverVersion}${isEmbedded ? `, embedded: ${url}` : ""}`],
                ["worker", `${worker.workerId}, pool ${worker.pool}, ${worker.slots} slots`],
                ["agents", worker.agents.join(", ")],
                ["api", `${api.url}, readable at ${api.url}/docs`],
                ["runs", `${counts.runs} (${counts.open} open)`],
              ]);
              for (const line of [...facts, ...suggestions(worker.agents)]) await out.line(line);
            }
            const note = openNote(api.isOpen);
            if (note !== undefined) out.note(note);
            await aborted(signal);
            out.note("stopping: turns at work may finish; Ctrl-C once more exits at once");
            await api.stop();
            await worker.stop();
            if (out.isJson) await out.value({ event: "stopped" });
            return exitCodes.ok;
          },
          { embedded: "create", handlesStop: true, takesOver: true },
        ),
      ),
    );
}

function suggestions(agents: readonly string[]): string[] {
  const example = agents.includes("auditor") ? `auditor '{"folder": "src"}'` : `${agents[0] ?? "<agent>"} "…"`;
  return ["", "In another terminal:", `  ${invocation} enqueue ${example} --follow`, `  ${invocation} runs list`, `  ${invocation} doctor`, "Ctrl-C stops everything."];
}
