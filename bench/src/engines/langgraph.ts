/** LangGraph with its Postgres checkpointer, durability "sync": each step is stored before the next. It has no queue; the caller invokes graphs. */
import { FINAL_TEXT, TOOL_NAME, turnTexts } from "../workload.ts";
import { limited, type Engine } from "./engine.ts";
import { loadPeer } from "./load-peer.ts";

interface State {
  readonly messages: readonly { readonly tool_calls?: readonly unknown[] }[];
}
interface Config {
  readonly configurable: { readonly thread_id: string };
}
interface Graph {
  addNode(name: string, node: (state: State, config: Config) => Promise<{ messages: unknown[] }>): Graph;
  addEdge(from: string, to: string): Graph;
  addConditionalEdges(from: string, next: (state: State) => string, targets: string[]): Graph;
  compile(options: { checkpointer: unknown }): { invoke(input: unknown, config: Config & { recursionLimit: number; durability: "sync" }): Promise<unknown> };
}
interface LangGraphModule {
  readonly StateGraph: new (annotation: unknown) => Graph;
  readonly MessagesAnnotation: unknown;
  readonly START: string;
  readonly END: string;
}
interface SaverModule {
  readonly PostgresSaver: { fromConnString(url: string): { setup(): Promise<void>; end(): Promise<void> } };
}
interface MessagesModule {
  readonly AIMessage: new (fields: { content: string; tool_calls?: { id: string; name: string; args: object; type: "tool_call" }[] }) => unknown;
  readonly ToolMessage: new (fields: { content: string; tool_call_id: string }) => unknown;
  readonly HumanMessage: new (content: string) => unknown;
}

export const langgraph: Engine = {
  title: "LangGraph, Postgres checkpointer",
  kind: "durable",
  pace: "slow",
  async start({ url, concurrency, hooks, think }) {
    const { StateGraph, MessagesAnnotation, START, END } = await loadPeer<LangGraphModule>("@langchain/langgraph");
    const { PostgresSaver } = await loadPeer<SaverModule>("@langchain/langgraph-checkpoint-postgres");
    const { AIMessage, ToolMessage, HumanMessage } = await loadPeer<MessagesModule>("@langchain/core/messages");
    const saver = PostgresSaver.fromConnString(url);
    await saver.setup();
    const turnsOf = new Map<number, number>();
    const turnOf = (state: State): number => (state.messages.length - 1) >> 1;
    const graph = new StateGraph(MessagesAnnotation)
      .addNode("model", async (state, config) => {
        const run = Number(config.configurable.thread_id);
        const turn = turnOf(state);
        // The step before this one has been stored.
        if (turn === 1) hooks.firstEvent(run);
        if (turn > 0) hooks.turn(run, turn - 1);
        if (turn >= (turnsOf.get(run) ?? 0)) return { messages: [new AIMessage({ content: FINAL_TEXT })] };
        await think(run, turn);
        const { callId, text, query } = turnTexts(turn);
        return { messages: [new AIMessage({ content: text, tool_calls: [{ id: callId, name: TOOL_NAME, args: { query }, type: "tool_call" }] })] };
      })
      .addNode("tool", async (state) => {
        const { callId, result } = turnTexts(turnOf(state));
        return { messages: [new ToolMessage({ content: result, tool_call_id: callId })] };
      })
      .addEdge(START, "model")
      .addEdge("tool", "model")
      .addConditionalEdges("model", (state) => ((state.messages.at(-1)?.tool_calls?.length ?? 0) > 0 ? "tool" : END), ["tool", END])
      .compile({ checkpointer: saver });
    const limit = limited(concurrency);
    return {
      async enqueue(run, turns) {
        turnsOf.set(run, turns);
        limit(async () => {
          try {
            await graph.invoke({ messages: [new HumanMessage("Audit the ledger.")] }, { configurable: { thread_id: String(run) }, recursionLimit: 1_000_000, durability: "sync" });
            hooks.done(run);
          } catch (error) {
            hooks.done(run, error);
          }
        });
      },
      stop: () => saver.end(),
    };
  },
};
