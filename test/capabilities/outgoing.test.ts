/** The guard of outgoing calls: no spelling of a private address passes, and a connection goes where the guard has looked. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { once } from "node:events";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { OutgoingGuard } from "../../src/capabilities/outgoing.ts";
import { outgoingFetch } from "../../src/capabilities/outgoing-fetch.ts";

const open = new OutgoingGuard({ resolve: async () => ["93.184.215.14"] });
const judged = (url: string, guard = open) => guard.addressesOf(new URL(url));

describe("what is refused", () => {
  it.each([
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://127.0.0.1./",
    "http://0/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://0xa9fea9fe/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://198.18.0.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::1]/",
    "http://[ff02::1]/",
    "https://user@example.com/",
    "https://user:secret@example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
  ])("%s", async (url) => {
    await expect(judged(url)).rejects.toMatchObject({ code: "OUTGOING_REFUSED" });
  });

  it("a name that leads to a private address, also among others", async () => {
    for (const addresses of [["10.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["::ffff:10.0.0.1"], ["fe80::1%eth0"], [], ["nonsense"]]) {
      await expect(judged("https://inside.example/", new OutgoingGuard({ resolve: async () => addresses })), addresses.join()).rejects.toMatchObject({ code: "OUTGOING_REFUSED" });
    }
    const missing = new OutgoingGuard({ resolve: () => Promise.reject(new Error("ENOTFOUND")) });
    await expect(judged("https://nowhere.example/", missing)).rejects.toThrow(/no address/);
  });

  it("says nothing of what the address holds besides its host", async () => {
    await expect(judged("http://user:hunter2@10.0.0.1/path?key=hunter3")).rejects.not.toThrow(/hunter/);
  });

  it("unencrypted HTTP where it is not allowed", async () => {
    await expect(open.addressesOf(new URL("http://example.com/"), { httpsOnly: true })).rejects.toThrow(/not encrypted/);
    expect(await open.addressesOf(new URL("https://example.com/"), { httpsOnly: true })).toEqual(["93.184.215.14"]);
  });
});

describe("what is allowed", () => {
  it("the public network, and what the operator names", async () => {
    expect(await judged("https://example.com/")).toEqual(["93.184.215.14"]);
    expect(await judged("https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/")).toEqual(["2606:2800:21f:cb07:6820:80da:af6b:8b2c"]);
    const guard = new OutgoingGuard({
      allow: ["10.0.0.0/8", "::1", "localhost", "fd00::/16", "[fd02::1]"],
      resolve: async (host) => (host === "localhost" ? ["127.0.0.1", "::1"] : ["10.9.8.7"]),
    });
    for (const url of [
      "http://10.1.2.3/",
      "http://[::ffff:10.1.2.3]/",
      "http://[::1]/",
      "http://localhost:3000/",
      "http://LOCALHOST./",
      "http://inside.example/",
      "http://[fd00::1]/",
    ])
      expect((await judged(url, guard)).length, url).toBeGreaterThan(0);
    for (const url of ["http://127.0.0.1/", "http://192.168.0.1/", "http://[fd01::1]/"]) await expect(judged(url, guard), url).rejects.toMatchObject({ code: "OUTGOING_REFUSED" });
  });

  it.each(["10.0.0.0/33", "10.0.0/8", "a b", "http://x", "", "10.0.0.0/x", "::1/129", "1.2.3.4/8/8"])("%j is no entry", (entry) => {
    expect(() => new OutgoingGuard({ allow: [entry] })).toThrow(RangeError);
  });
});

describe("a request", () => {
  let server: Server;
  let port = 0;
  beforeAll(async () => {
    server = createServer((request, response) => {
      if (request.url === "/moved") return void response.writeHead(302, { location: `http://127.0.0.1:${port}/` }).end();
      response.writeHead(200, { "x-host": request.headers.host ?? "", "set-cookie": ["a=1", "b=2"] });
      request.pipe(response);
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    port = (server.address() as AddressInfo).port;
  });
  afterAll(() => void server.close());

  it("goes to the address that was judged, though the name leads elsewhere by then", async () => {
    const asked: string[] = [];
    const answers = [["127.0.0.1"], ["10.255.255.1"]];
    const guard = new OutgoingGuard({ allow: ["127.0.0.1"], resolve: async (host) => (asked.push(host), answers.shift() ?? []) });
    const response = await outgoingFetch(guard)(`http://rebound.example:${port}/echo`, { method: "POST", body: "hello", headers: { "content-type": "text/plain" } });
    expect([response.status, await response.text(), response.headers.get("x-host")]).toEqual([200, "hello", `rebound.example:${port}`]);
    // Asked once, and for the next request anew, which is refused.
    expect(asked).toEqual(["rebound.example"]);
    await expect(outgoingFetch(guard)(`http://rebound.example:${port}/`)).rejects.toMatchObject({ code: "OUTGOING_REFUSED" });
  });

  it("follows no redirect, and ends with its signal", async () => {
    const fetch = outgoingFetch(new OutgoingGuard({ allow: ["127.0.0.1"] }));
    const moved = await fetch(`http://127.0.0.1:${port}/moved`);
    expect([moved.status, moved.headers.get("location")]).toEqual([302, `http://127.0.0.1:${port}/`]);
    await expect(fetch(`http://127.0.0.1:${port}/`, { signal: AbortSignal.abort(new Error("enough")) })).rejects.toThrow("enough");
  });
});
