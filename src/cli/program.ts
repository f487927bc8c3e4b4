/** The command line put together: parses, runs one command, turns what it throws into text and exit code. */
import { Command, CommanderError } from "commander";
import { VERSION } from "../version.ts";
import { addAgentCommands } from "./agents.ts";
import { addApi } from "./api.ts";
import { addApprovalCommands } from "./approvals.ts";
import { addAuditCommands } from "./audit.ts";
import { addCompletion } from "./completion.ts";
import { addConversationCommands } from "./conversations.ts";
import { registerDemo } from "./demo.ts";
import { addDoctor } from "./doctor.ts";
import { addEnqueue } from "./enqueue.ts";
import { addErase } from "./erase.ts";
import { failureOf } from "./errors.ts";
import { exitCodes, exitCodesHelp, Stopped } from "./exit.ts";
import { addGc } from "./gc.ts";
import { addMcp } from "./mcp.ts";
import { addMigrate } from "./migrate.ts";
import { addPause } from "./pause.ts";
import { addQuotaCommands } from "./quotas.ts";
import { addRunCommands } from "./runs.ts";
import { addScheduleCommands } from "./schedules.ts";
import { addTokenCommands } from "./tokens.ts";
import { addUp } from "./up.ts";
import { addUsage } from "./usage.ts";
import { addVerify } from "./verify.ts";
import { addWebhookCommands } from "./webhooks.ts";
import { addWorker } from "./worker.ts";

export function buildProgram(): Command {
  const program = new Command("capstan")
    .description("Durable worker for AI agents on Postgres. Commands use DATABASE_URL, or the embedded Postgres under .capstan.")
    .version(VERSION)
    .showHelpAfterError("(--help shows what it takes)")
    .exitOverride()
    .addHelpText("after", `\n${exitCodesHelp}`);
  registerDemo(program);
  addUp(program);
  addMigrate(program);
  addWorker(program);
  addApi(program);
  addTokenCommands(program);
  addEnqueue(program);
  addRunCommands(program);
  addApprovalCommands(program);
  addPause(program);
  addConversationCommands(program);
  addAgentCommands(program);
  addScheduleCommands(program);
  addQuotaCommands(program);
  addUsage(program);
  addGc(program);
  addErase(program);
  addMcp(program);
  addWebhookCommands(program);
  addAuditCommands(program);
  addVerify(program);
  addDoctor(program);
  addCompletion(program);
  return program;
}

/** Gives the exit code; never throws. */
export async function runProgram(args: readonly string[]): Promise<number> {
  // Also help text may go into a pipe that is closed early; commands listen on their own to end in time.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code !== "EPIPE") throw error;
  });
  try {
    await buildProgram().parseAsync([...args], { from: "user" });
    return typeof process.exitCode === "number" ? process.exitCode : exitCodes.ok;
  } catch (error) {
    if (error instanceof Stopped) return error.exitCode;
    if (error instanceof CommanderError) return error.exitCode === 0 ? exitCodes.ok : exitCodes.usage; // commander has said it
    return report(error, args.includes("--json"));
  }
}

function report(error: unknown, asJson: boolean): number {
  const { code, message, details, exitCode } = failureOf(error);
  if (asJson) process.stdout.write(`${JSON.stringify({ error: { code, message, ...(Object.keys(details).length === 0 ? {} : { details }) } })}\n`);
  process.stderr.write(`${code}: ${message}\n`);
  if (process.env["CAPSTAN_DEBUG"] === "1" && error instanceof Error) process.stderr.write(`${error.stack ?? ""}\n`);
  return exitCode;
}
