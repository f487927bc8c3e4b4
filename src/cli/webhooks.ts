import type { Command } from "commander";
import { OutgoingGuard } from "../capabilities/outgoing.ts";
import { WebhooksClient, type CreatedWebhook, type DeliveryView, type WebhookEvent, type WebhookView } from "../client/webhooks.ts";
import { actorName } from "./actor.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, parseCount, parseDuration } from "./format.ts";
import { brief, type Output } from "./output.ts";
import { factLines, tableLines, type Column } from "./table.ts";

interface TenantFlag {
  readonly tenant?: string;
}

const columns: readonly Column<WebhookView>[] = [
  { title: "NAME", value: ({ name }) => brief(name, 40) },
  { title: "TENANT", value: ({ tenant }) => tenant },
  { title: "URL", value: ({ url }) => brief(url, 60) },
  { title: "EVENTS", value: ({ events, agent }) => `${events.join(" ")}${agent === undefined ? "" : ` of ${agent}`}` },
  {
    title: "STATE",
    value: ({ disabled_at: at, disabled_reason: reason, failures }) => (at === undefined ? (failures === 0 ? "on" : `on, ${failures} given up`) : `off: ${reason ?? "by hand"}`),
  },
];

const deliveryColumns: readonly Column<DeliveryView>[] = [
  { title: "ID", value: ({ id }) => id },
  { title: "WEBHOOK", value: ({ webhook }) => brief(webhook, 30) },
  { title: "EVENT", value: ({ event }) => event },
  { title: "RUN", value: ({ run_id: run }) => run ?? "" },
  { title: "STATE", value: ({ state }) => state },
  { title: "AGE", align: "right", value: ({ at }) => age(at) },
  { title: "TRIES", align: "right", value: ({ attempts }) => String(attempts) },
  { title: "LAST ANSWER", value: ({ status_code: status, error }) => brief([status, error].filter((each) => each !== undefined).join(" "), 60) },
];

const states = ["waiting", "delivered", "gave_up"] as const;

export function addWebhookCommands(program: Command): void {
  const webhooks = addGroup(program, "webhooks", "where the ends of runs are told to the outside");
  addCommand(webhooks, "list", { summary: "list webhooks", examples: ["webhooks list", "webhooks list --tenant acme --json | jq -r '.webhooks[].url'"] })
    .option("--tenant <name>", "only this tenant's")
    .action(
      action(async (out, flags: TenantFlag) =>
        withWebhooks(out, async (client) => {
          const found = await client.list(flags);
          if (out.isJson) await out.value({ webhooks: found });
          else if (found.length === 0) out.note("no webhooks yet: capstan webhooks create makes one");
          else for (const line of tableLines(columns, found, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        }),
      ),
    );

  ofTenant(
    addCommand(webhooks, "create", {
      summary: "make a webhook, and show its secret once",
      description:
        "Makes a webhook: its address gets a signed request when a run of the tenant ends or begins to wait for a person. Requests hold ids and states; with --content also what the run said. The secret, by which receivers know them, is shown this once.",
      examples: ["webhooks create orders https://example.com/hooks/capstan", "webhooks create audits https://example.com/hook --event run.failed --agent auditor"],
    }),
  )
    .argument("<name>")
    .argument("<url>", "https://…")
    .option("--event <event>", "run.completed, run.failed, run.cancelled or run.waiting; may be given several times (default: all)", (event: string, all: string[] | undefined) => [
      ...(all ?? []),
      event,
    ])
    .option("--agent <name>", "only runs of this agent")
    .option("--content", "requests hold the run's output or error too")
    .action(
      action(
        async (
          out,
          name: string,
          url: string,
          { event, agent, content, tenant }: TenantFlag & { readonly event?: string[]; readonly agent?: string; readonly content?: boolean },
        ) =>
          withWebhooks(out, async (client) =>
            showSecret(
              out,
              await client.create({
                name,
                url,
                actor: actorName(),
                ...(tenant === undefined ? {} : { tenant }),
                ...(agent === undefined ? {} : { agent }),
                ...(content === true ? { content } : {}),
                ...(event === undefined ? {} : { events: event as WebhookEvent[] }),
              }),
            ),
          ),
      ),
    );

  for (const [verb, summary, done, undone] of [
    ["test", "send a webhook a test request", "a request of type webhook.test is on its way", ""],
    ["disable", "send a webhook nothing more until it is enabled", "disabled", "was disabled already"],
    ["enable", "let a disabled webhook get requests again", "enabled", "was not disabled"],
    ["delete", "remove a webhook with its deliveries", "deleted", ""],
  ] as const) {
    ofTenant(addCommand(webhooks, verb, { summary, examples: [`webhooks ${verb} orders`] }))
      .argument("<name>")
      .action(
        action(async (out, name: string, flags: TenantFlag) =>
          withWebhooks(out, async (client) => {
            const changed = await client[verb](name, { ...flags, actor: actorName() });
            const text = changed === false ? undone : done;
            if (out.isJson) await out.value({ name, ...(verb === "test" ? { delivery_id: changed } : { changed: changed !== false }) });
            else await out.line(`${name}  ${text}${verb === "test" ? `  ${String(changed)}` : ""}`);
            return exitCodes.ok;
          }),
        ),
      );
  }

  ofTenant(
    addCommand(webhooks, "rotate", {
      summary: "give a webhook a new secret, and show it once",
      description: "Gives a webhook a new secret and shows it once. Until the overlap is over, requests are signed with the former one too, so that receivers can change over.",
      examples: ["webhooks rotate orders", "webhooks rotate orders --overlap 1h"],
    }),
  )
    .argument("<name>")
    .option("--overlap <time>", "how long the former secret signs too (default: 1d)")
    .action(
      action(async (out, name: string, { overlap, ...flags }: TenantFlag & { readonly overlap?: string }) =>
        withWebhooks(out, async (client) =>
          showSecret(out, await client.rotate(name, { ...flags, actor: actorName(), ...(overlap === undefined ? {} : { overlapMs: parseDuration("--overlap", overlap) }) })),
        ),
      ),
    );

  addCommand(webhooks, "deliveries", {
    summary: "list what was and is to be sent, newest first",
    examples: ["webhooks deliveries --state gave_up", "webhooks deliveries --webhook orders --limit 20 --json"],
  })
    .option("--tenant <name>", "only this tenant's")
    .option("--webhook <name>", "only of this webhook")
    .option("--run <run id>", "only about this run")
    .option("--state <state>", states.join(", "))
    .option("--limit <n>", "1 to 1,000 (default: 100)", parseCount("--limit", { min: 1, max: 1_000 }))
    .option("--before <delivery id>", "those that are older")
    .action(
      action(
        async (
          out,
          {
            run,
            ...flags
          }: TenantFlag & { readonly webhook?: string; readonly run?: string; readonly state?: DeliveryView["state"]; readonly limit?: number; readonly before?: string },
        ) =>
          withWebhooks(out, async (client) => {
            const found = await client.deliveries({ ...flags, ...(run === undefined ? {} : { runId: run }) });
            if (out.isJson) await out.value({ deliveries: found });
            else if (found.length === 0) out.note("no deliveries");
            else for (const line of tableLines(deliveryColumns, found, out.colors.bold)) await out.line(line);
            return exitCodes.ok;
          }),
      ),
    );

  ofTenant(addCommand(webhooks, "redeliver", { summary: "send a delivery once more, with its id", examples: ["webhooks redeliver 0190…"] }))
    .argument("<delivery id>")
    .action(
      action(async (out, id: string, flags: TenantFlag) =>
        withWebhooks(out, async (client) => {
          await client.redeliver(id, { ...flags, actor: actorName() });
          if (out.isJson) await out.value({ delivery_id: id, state: "waiting" });
          else await out.line(`${id}  is sent once more`);
          return exitCodes.ok;
        }),
      ),
    );
}

function ofTenant(command: Command): Command {
  return command.option("--tenant <name>", "the webhook's tenant (default: default)");
}

async function withWebhooks(out: Output, use: (client: WebhooksClient) => Promise<number>): Promise<number> {
  return await withDatabase(out, ({ pool, named, config }) => {
    const guard = new OutgoingGuard({ allow: config.outgoingAllow });
    return use(new WebhooksClient(pool, named, (url) => guard.addressesOf(url, { httpsOnly: true })));
  });
}

async function showSecret(out: Output, { secret, ...webhook }: CreatedWebhook): Promise<number> {
  if (out.isJson) await out.value({ ...webhook, secret });
  else {
    const facts = factLines([
      ["webhook", webhook.name],
      ["url", webhook.url],
      ["events", webhook.events.join(" ")],
      ["secret", secret],
    ]);
    for (const line of facts) await out.line(line);
    out.note("the secret is not shown again");
  }
  return exitCodes.ok;
}
