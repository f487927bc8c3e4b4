import type { Command } from "commander";
import { PauseClient, type PauseView } from "../client/pauses.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { pauseText, resumeCommand, scopeText } from "./pause-text.ts";

interface PauseFlags {
  readonly tenant?: string;
  readonly reason?: string;
}

export function addPause(program: Command): void {
  addCommand(program, "pause", {
    summary: "let everything, or a tenant, stand still",
    description:
      "Lets everything, or one tenant, stand still until it is resumed, also over restarts of workers and database. Turns at hand are finished, no other begins; what is enqueued stays queued, approvals, signals and input are taken and kept.",
    examples: ['pause --reason "the vendor has an outage"', "pause --tenant acme"],
  })
    .option("--tenant <name>", "only this tenant (default: everything)")
    .option("--reason <text>", "doctor and listings show it")
    .action(
      action(async (out, { tenant, reason }: PauseFlags) =>
        withDatabase(out, async ({ pool, named }) => {
          const scope = tenant === undefined ? {} : { tenant };
          const changed = await new PauseClient(pool, named).pause({ ...scope, actor: actorName(), ...(reason === undefined ? {} : { reason }) });
          if (out.isJson) await out.value({ tenant: tenant ?? null, paused: true, changed });
          else await out.line(`${scopeText(scope)}  ${changed ? `paused; to go on: ${resumeCommand(scope)}` : "was paused already"}`);
          return exitCodes.ok;
        }),
      ),
    );

  addCommand(program, "resume", {
    summary: "let everything, or a tenant, go on",
    description: "Lets everything, or one tenant, go on. Pauses of other scopes stay: a tenant's own is not lifted with everything's, nor a run's with either.",
    examples: ["resume", "resume --tenant acme"],
  })
    .option("--tenant <name>", "only this tenant (default: everything)")
    .action(
      action(async (out, { tenant }: PauseFlags) =>
        withDatabase(out, async ({ pool, named }) => {
          const client = new PauseClient(pool, named);
          const scope = tenant === undefined ? {} : { tenant };
          const changed = await client.resume({ ...scope, actor: actorName() });
          const still: readonly PauseView[] = await client.list();
          if (out.isJson) await out.value({ tenant: tenant ?? null, paused: false, changed, still_paused: still });
          else await out.line(`${scopeText(scope)}  ${changed ? "resumed" : "was not paused"}`);
          for (const pause of still) out.note(pauseText(pause));
          return exitCodes.ok;
        }),
      ),
    );
}
