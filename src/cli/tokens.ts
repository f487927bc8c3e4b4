import { InvalidArgumentError, type Command } from "commander";
import { TokensClient, tokenScopes, type TokenScope, type TokenView } from "../client/tokens.ts";
import { actorName } from "./actor.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { age, parseWhen } from "./format.ts";
import { brief } from "./output.ts";
import { factLines, tableLines, type Column } from "./table.ts";

interface CreateFlags {
  readonly scope?: readonly TokenScope[];
  readonly tenant?: string;
  readonly subject?: string;
  readonly expires?: string;
}

const columns: readonly Column<TokenView>[] = [
  { title: "ID", value: ({ id }) => id },
  { title: "NAME", value: ({ name }) => brief(name, 40) },
  { title: "TENANT", value: ({ tenant }) => tenant },
  { title: "SUBJECT", value: ({ subject }) => brief(subject ?? "", 30) },
  { title: "SCOPES", value: ({ scopes }) => scopes.join(" ") },
  { title: "STATE", value: ({ state }) => state },
  { title: "AGE", align: "right", value: ({ created_at: at }) => age(at) },
  { title: "LAST USED", align: "right", value: ({ last_used_at: at }) => (at === undefined ? "never" : `${age(at)} ago`) },
  { title: "EXPIRES", value: ({ expires_at: at }) => at?.slice(0, 16) ?? "" },
];

export function addTokenCommands(program: Command): void {
  const tokens = addGroup(program, "tokens", "who may use the HTTP API, and for what");
  addCommand(tokens, "create", {
    summary: "make a token, and show it once",
    description: `Makes a token of one tenant and shows it, this once. Scopes: ${tokenScopes.join(", ")}; admin is all of them. As soon as there is one, the API answers nobody without.`,
    examples: [
      "tokens create backend --scope runs:create --scope runs:read",
      "tokens create ops --tenant acme --scope admin --expires +90d",
      "tokens create ci --scope runs:read --json | jq -r .token",
    ],
  })
    .argument("<name>", "stands in journals and in the audit log for whoever uses it")
    .option("--scope <scope>", "what it allows; may be given several times", (scope: string, all: string[] | undefined) => [...(all ?? []), parseScope(scope)])
    .option("--tenant <name>", "whose runs it is for (default: default)")
    .option("--subject <name>", "runs that are started with it belong to this subject")
    .option("--expires <time>", "an ISO 8601 time with its zone, or +90d from now (default: never)")
    .action(
      action(async (out, name: string, { scope = [], tenant, subject, expires }: CreateFlags) => {
        if (scope.length === 0) throw usageError(`--scope is missing: give at least one of ${tokenScopes.join(", ")}`);
        const expiresAt = expires === undefined ? undefined : parseWhen("--expires", expires);
        return await withDatabase(out, async ({ pool, named }) => {
          const options = { name, scopes: scope, actor: actorName(), ...(tenant === undefined ? {} : { tenant }), ...(subject === undefined ? {} : { subject }) };
          const made = await new TokensClient(pool, named).create({ ...options, ...(expiresAt === undefined ? {} : { expiresAt }) });
          if (out.isJson) await out.value(made);
          else {
            const facts = factLines([
              ["token", made.token],
              ["name", made.name],
              ["tenant", made.tenant],
              ["scopes", made.scopes.join(" ")],
              ["expires", made.expires_at],
            ]);
            for (const line of facts) await out.line(line);
            out.note("the token is not shown again");
          }
          return exitCodes.ok;
        });
      }),
    );

  addCommand(tokens, "list", {
    summary: "list tokens, newest first",
    examples: ["tokens list", "tokens list --tenant acme --json | jq '.tokens[] | select(.state == \"active\")'"],
  })
    .option("--tenant <name>", "only this tenant's")
    .action(
      action(async (out, { tenant }: { tenant?: string }) =>
        withDatabase(out, async ({ pool, named }) => {
          const found = await new TokensClient(pool, named).list(tenant === undefined ? {} : { tenant });
          if (out.isJson) await out.value({ tokens: found });
          else if (found.length === 0) out.note("no tokens: the API listens on this machine only, and whoever uses it may do everything");
          else for (const line of tableLines(columns, found, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        }),
      ),
    );

  addCommand(tokens, "revoke", {
    summary: "let a token open nothing any more",
    description: "From then on, within seconds also for streams that it has open. Without any token that is in use the API answers nobody.",
    examples: ["tokens revoke 0190…"],
  })
    .argument("<id>")
    .action(
      action(async (out, id: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const revoked = await new TokensClient(pool, named).revoke(id, { actor: actorName() });
          if (out.isJson) await out.value({ id, revoked });
          else await out.line(`${id}  ${revoked ? "revoked" : "was revoked already"}`);
          return exitCodes.ok;
        }),
      ),
    );
}

function parseScope(scope: string): TokenScope {
  if ((tokenScopes as readonly string[]).includes(scope)) return scope as TokenScope;
  throw new InvalidArgumentError(`There are ${tokenScopes.join(", ")}.`);
}
