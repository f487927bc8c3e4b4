/** DBOS Transact as its guide for agents shows: a workflow, each model call and tool a step; started in the worker's process. */
import { FINAL_TEXT, turnTexts } from "../workload.ts";
import { limited, type Engine } from "./engine.ts";
import { loadPeer } from "./load-peer.ts";
import { answerOf, resultOf, type PlainMessage } from "./plain-messages.ts";

type AgentWorkflow = (run: number, turns: number) => Promise<number>;

/** As much of the package as is used here: its types are there only once the peers are installed. */
interface DbosModule {
  readonly DBOS: {
    setConfig(config: { name: string; systemDatabaseUrl: string; logLevel: string; executorID: string; applicationVersion: string }): void;
    registerWorkflow(workflow: AgentWorkflow, options: { name: string }): AgentWorkflow;
    runStep<T>(step: () => Promise<T>, options: { name: string }): Promise<T>;
    startWorkflow(workflow: AgentWorkflow, options: { workflowID: string }): (run: number, turns: number) => Promise<{ getResult(): Promise<number> }>;
    launch(): Promise<void>;
    shutdown(): Promise<void>;
  };
}

export const dbos: Engine = {
  title: "DBOS, started directly",
  kind: "durable",
  pace: "slow",
  async start({ url, concurrency, hooks, think }) {
    const { DBOS } = await loadPeer<DbosModule>("@dbos-inc/dbos-sdk");
    DBOS.setConfig({ name: "bench", systemDatabaseUrl: url, logLevel: "error", executorID: "local", applicationVersion: "1" });
    const workflow = DBOS.registerWorkflow(
      async (run, turns) => {
        const messages: PlainMessage[] = [{ role: "user", content: "Audit the ledger." }];
        for (let turn = 0; turn < turns; turn++) {
          const texts = turnTexts(turn);
          const answer = await DBOS.runStep(
            async () => {
              await think(run, turn);
              return answerOf(texts);
            },
            { name: "model" },
          );
          const result = await DBOS.runStep(async () => resultOf(texts), { name: "tool" });
          messages.push(answer, result);
          if (turn === 0) hooks.firstEvent(run);
          hooks.turn(run, turn);
        }
        await DBOS.runStep(async (): Promise<PlainMessage> => ({ role: "assistant", content: FINAL_TEXT }), { name: "model" });
        return messages.length;
      },
      { name: "agent" },
    );
    await DBOS.launch();
    const limit = limited(concurrency);
    return {
      async enqueue(run, turns) {
        limit(async () => {
          try {
            const handle = await DBOS.startWorkflow(workflow, { workflowID: `run-${run}` })(run, turns);
            await handle.getResult();
            hooks.done(run);
          } catch (error) {
            hooks.done(run, error);
          }
        });
      },
      stop: () => DBOS.shutdown(),
    };
  },
};
