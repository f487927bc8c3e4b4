/** Many followers in one process, as light as they can be: what they measure should not be what they cost. */
import http from "node:http";

export interface Crowd {
  /** Of every piece of live text and every follower: from the model's word to the follower, ms. */
  readonly latenciesMs: number[];
  /** Followers that have heard something. */
  readonly size: number;
  readonly ended: Promise<unknown>;
}

export function followAll(urls: readonly string[]): Crowd {
  const agent = new http.Agent({ maxSockets: Number.POSITIVE_INFINITY });
  const latenciesMs: number[] = [];
  let size = 0;
  const one = (url: string): Promise<void> =>
    new Promise((resolve, reject) => {
      http
        .get(url, { agent, headers: { accept: "text/event-stream" } }, (response) => {
          size++;
          let rest = "";
          response.setEncoding("latin1").on("data", (text: string) => {
            const now = Date.now();
            const blocks = (rest + text).split("\n\n");
            rest = blocks.pop() ?? "";
            for (const block of blocks) {
              if (!block.startsWith("event: delta")) continue;
              const said = block.slice(block.indexOf('"text":"') + 8);
              for (const at of said.slice(0, said.indexOf('"')).split(" ")) if (at !== "") latenciesMs.push(now - Number(at));
            }
          });
          response.on("end", resolve).on("error", reject);
        })
        .on("error", reject);
    });
  return {
    latenciesMs,
    ended: Promise.all(urls.map(one)),
    get size() {
      return size;
    },
  };
}
