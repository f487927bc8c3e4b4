/**
 * Many small agents on one worker: each test of a file has its own agent and script, all of them share the lab. Their
 * runs are started together, so each also shows that what its neighbours do does not touch it.
 */
import { afterAll, beforeAll } from "vitest";
import { startModelServer, type ModelServer, type Protocol, type ScriptedReply } from "../../src/testing/model-server/index.ts";
import { z } from "zod";
import { agent, type AgentSpec } from "../../src/agents/agent.ts";
import { tool, type Tool, type ToolSpec } from "../../src/agents/tool.ts";
import { scriptedModel, type ScriptedModel, type ScriptedModelOptions, type ScriptedModelReply, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { openLab, type AnyAgent, type Lab, type LabOptions, type Settled } from "../engine/harness.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { JsonObject, JsonValue } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";

export interface Case {
  readonly agent: AnyAgent;
  readonly model: ScriptedModel;
}

export class Cases {
  readonly #agents: AnyAgent[] = [];
  readonly #models: Model[] = [];
  readonly #later = new Set<AnyAgent>();
  readonly #started = new Map<AnyAgent, RunHandle>();
  readonly #replies = new Map<string, readonly ScriptedReply[]>();
  readonly #asked = new Map<string, number>();
  #lab: Lab | undefined;
  #server: ModelServer | undefined;

  get lab(): Lab {
    if (this.#lab === undefined) throw new Error("the lab opens before the first test");
    return this.#lab;
  }

  /** An agent whose model follows the script. A name has one agent: it is also the model's. */
  add(name: string, steps: readonly ScriptedStep[], spec: Partial<AgentSpec> = {}, model: ScriptedModelOptions = {}): Case {
    const scripted = scriptedModel(steps, { name: `scripted:${name}`, ...model });
    this.#models.push(scripted);
    return { agent: this.addAgent(agent({ name, model: scripted.name, instructions: "Do as you are told.", ...spec })), model: scripted };
  }

  /** An agent whose model answers over HTTP, through the vendor's own client; the last reply is given again and again. */
  addHttp(name: string, protocol: Protocol, replies: readonly ScriptedReply[], spec: Partial<AgentSpec> = {}): AnyAgent {
    const model = httpModel(protocol, name);
    this.answerHttp(model, replies);
    return this.addAgent(agent({ name, model, instructions: "Do as you are told.", ...spec }));
  }

  answerHttp(model: string, replies: readonly ScriptedReply[]): void {
    this.#replies.set(model.slice(model.indexOf(":") + 1), replies);
  }

  /** Leaves it to the test to start this agent's run. */
  later(own: AnyAgent): AnyAgent {
    this.#later.add(own);
    return own;
  }

  /** The agent's run, which was started together with all others of the file. */
  async outcome(own: AnyAgent): Promise<Settled> {
    const handle = this.#started.get(own);
    if (handle === undefined) throw new Error(`no run of ${own.name} was started`);
    const status = await this.lab.settled(handle.id);
    return { id: handle.id, handle, status, events: await this.lab.events(handle.id) };
  }

  get server(): ModelServer {
    if (this.#server === undefined) throw new Error("the model server opens before the first test");
    return this.#server;
  }

  addAgent(own: AnyAgent): AnyAgent {
    this.#agents.push(own);
    return own;
  }

  addModel(model: Model): void {
    this.#models.push(model);
  }

  /** Call it after the last agent was added, at the top level of the file. */
  openOn(url: string, options: Partial<LabOptions> = {}): void {
    beforeAll(async () => {
      this.#server = await startModelServer({
        respond: ({ body }) => {
          const model = String(body["model"]);
          const replies = this.#replies.get(model) ?? [];
          const asked = this.#asked.get(model) ?? 0;
          this.#asked.set(model, asked + 1);
          return replies[Math.min(asked, replies.length - 1)] ?? { error: { status: 404, message: `no script for ${model}` } };
        },
      });
      const catalogue = {
        env: { ANTHROPIC_API_KEY: "key-a", OPENAI_API_KEY: "key-o" },
        baseUrls: { anthropic: this.#server.anthropicBaseUrl, openai: this.#server.openaiBaseUrl },
      };
      this.#lab = await openLab(url, { catalogue, ...options, agents: this.#agents, models: this.#models });
      for (const own of this.#agents) if (!this.#later.has(own)) this.#started.set(own, await this.#lab.capstan.enqueue<unknown, JsonValue>(own as never, "go"));
    });
    afterAll(async () => {
      await this.#lab?.[Symbol.asyncDispose]();
      await this.#server?.close();
    });
  }
}

export function httpModel(protocol: Protocol, name: string): string {
  return { "openai-chat": `openai-chat:gpt-4.1-${name}`, "openai-responses": `openai:gpt-4.1-${name}`, anthropic: `anthropic:claude-sonnet-4-5-${name}` }[protocol];
}

/** A reply that calls one tool. */
export function calls(name: string, input: JsonObject = {}): ScriptedModelReply {
  return { toolCalls: [{ name, input }] };
}

/** A tool without arguments that does what the test says. */
export function doing(name: string, execute: ToolSpec["execute"], spec: Partial<ToolSpec> = {}): Tool {
  return tool({ name, description: `Does ${name}.`, input: z.looseObject({}), effect: "read", ...spec, execute });
}
