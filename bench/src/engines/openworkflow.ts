/** OpenWorkflow as its documents show: a workflow whose model calls and tools are steps, run by its worker. */
import { FINAL_TEXT, turnTexts } from "../workload.ts";
import type { Engine } from "./engine.ts";
import { loadPeer } from "./load-peer.ts";
import { answerOf, resultOf, type PlainMessage } from "./plain-messages.ts";

interface Step {
  run<T>(options: { name: string }, work: () => Promise<T>): Promise<T>;
}
interface Backend {
  stop(): Promise<void>;
}
interface Workflow {
  run(input: { run: number; turns: number }): Promise<unknown>;
}
interface OpenWorkflowModule {
  readonly OpenWorkflow: new (options: { backend: Backend }) => {
    defineWorkflow(options: { name: string }, work: (context: { input: { run: number; turns: number }; step: Step }) => Promise<number>): Workflow;
    newWorker(options: { concurrency: number }): { start(): Promise<void>; stop(): Promise<void> };
  };
}
interface PostgresModule {
  readonly BackendPostgres: { connect(url: string): Promise<Backend> };
}

export const openworkflow: Engine = {
  title: "OpenWorkflow",
  kind: "durable",
  pace: "slow",
  async start({ url, concurrency, hooks, think }) {
    const { OpenWorkflow } = await loadPeer<OpenWorkflowModule>("openworkflow");
    const { BackendPostgres } = await loadPeer<PostgresModule>("openworkflow/postgres");
    const backend = await BackendPostgres.connect(url);
    const app = new OpenWorkflow({ backend });
    const workflow = app.defineWorkflow({ name: "agent" }, async ({ input: { run, turns }, step }) => {
      const messages: PlainMessage[] = [{ role: "user", content: "Audit the ledger." }];
      for (let turn = 0; turn < turns; turn++) {
        const texts = turnTexts(turn);
        const answer = await step.run({ name: `model-${turn}` }, async () => {
          await think(run, turn);
          return answerOf(texts);
        });
        const result = await step.run({ name: `tool-${turn}` }, async () => resultOf(texts));
        messages.push(answer, result);
        if (turn === 0) hooks.firstEvent(run);
        hooks.turn(run, turn);
      }
      await step.run({ name: "model-end" }, async (): Promise<PlainMessage> => ({ role: "assistant", content: FINAL_TEXT }));
      hooks.done(run);
      return messages.length;
    });
    const worker = app.newWorker({ concurrency });
    await worker.start();
    return {
      async enqueue(run, turns) {
        await workflow.run({ run, turns });
      },
      async stop() {
        await worker.stop();
        await backend.stop();
      },
    };
  },
};
