import { readFile } from "node:fs/promises";
import type { Command } from "commander";
import { createClient } from "../client/client.ts";
import { TokensClient } from "../client/tokens.ts";
import type { McpAccess } from "../mcp/server/access.ts";
import { tokenAccess } from "../mcp/server/token-access.ts";
import { createLog } from "../telemetry/log.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";

interface McpFlags {
  readonly tokenFile?: string;
  readonly tenant?: string;
}

export function addMcp(program: Command): void {
  addCommand(program, "mcp", {
    summary: "let an assistant work with runs, over standard input and output",
    description:
      "An MCP server over standard input and output: its tools start, list, show, follow, steer, stop, cancel and compact runs and decide approvals. With a token (CAPSTAN_TOKEN or --token-file) it does so within the token's tenant and scopes; without one for one tenant, with all that the database allows. Ends with its input.",
    examples: ["mcp                                  # tenant default", "mcp --tenant acme", "mcp --token-file ~/.capstan-token"],
  })
    .option("--token-file <path>", "a file that holds the token; instead of CAPSTAN_TOKEN")
    .option("--tenant <name>", "without a token: whose runs (default: default)")
    .action(
      action(async (out, flags: McpFlags) => {
        const token = await readToken(flags);
        if (token !== undefined && flags.tenant !== undefined) throw usageError("--tenant goes without a token: a token says itself whose runs it is for");
        return await withDatabase(
          out,
          async (database) => {
            await serve(
              database,
              token === undefined
                ? async () => ({ tenant: flags.tenant ?? "default", scopes: "all", actor: actorName() })
                : tokenAccess(new TokensClient(database.pool, database.named), token),
            );
            return exitCodes.ok;
          },
          { handlesStop: true },
        );
      }),
    );
}

async function serve({ pool, named, config, directUrl, signal }: Database, access: () => Promise<McpAccess>): Promise<void> {
  // Refused before the first request: an assistant shows a server that does not start, not one whose tools all fail.
  await access();
  const [{ StdioServerTransport }, { createMcpServer }] = await Promise.all([import("@modelcontextprotocol/sdk/server/stdio.js"), import("../mcp/server/server.ts")]);
  const client = createClient({ pool, names: config.names, directConnectionString: directUrl });
  const server = createMcpServer({ client, db: pool, named, access, log: createLog({ level: config.logLevel }) });
  const ended = new Promise<void>((resolve) => {
    process.stdin.once("end", resolve);
    process.stdin.once("close", resolve);
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
  await server.connect(new StdioServerTransport());
  await ended;
  await server.close();
  await client.close();
}

async function readToken({ tokenFile }: McpFlags): Promise<string | undefined> {
  if (tokenFile === undefined) return process.env["CAPSTAN_TOKEN"] === "" ? undefined : process.env["CAPSTAN_TOKEN"];
  let text: string;
  try {
    text = (await readFile(tokenFile, "utf8")).trim();
  } catch (error) {
    throw usageError(`--token-file: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (text === "") throw usageError(`--token-file: ${tokenFile} is empty`);
  return text;
}
