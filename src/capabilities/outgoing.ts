/**
 * Addresses that come from tenants or by an API (webhooks, MCP servers) must not lead into the network that the worker
 * stands in: to other services, the cloud's metadata, the machine itself. A host is looked up once, each of its addresses
 * is judged, and the connection is made to those very addresses: a name that answers otherwise a moment later gains
 * nothing. What the operator configured for himself (base URLs of providers) is not asked about.
 */
import { lookup as dnsLookup } from "node:dns/promises";
import { BlockList, isIP, type LookupFunction } from "node:net";
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";

export interface OutgoingOptions {
  /** Networks (`10.0.0.0/8`), addresses and host names that may be asked all the same. */
  readonly allow?: readonly string[];
  /** For tests: gives the addresses of a host. */
  readonly resolve?: (host: string) => Promise<readonly string[]>;
}

export class OutgoingRefusedError extends CapstanError {
  override readonly name = "OutgoingRefusedError";
  readonly code = "OUTGOING_REFUSED";
  override readonly details: JsonObject;
  constructor(url: string, problem: string, options?: ErrorOptions) {
    super(`${shown(url)} must not be asked: ${problem}`, options);
    this.details = { problem };
  }
}

/** Not anybody's in the public network (IANA's special-purpose registries, 2026-11), with tunnels that lead back into one. */
const closed: readonly (readonly [network: string, bits: number, what: string])[] = [
  ["0.0.0.0", 8, "this host"],
  ["10.0.0.0", 8, "private"],
  ["100.64.0.0", 10, "shared by a carrier"],
  ["127.0.0.0", 8, "loopback"],
  ["169.254.0.0", 16, "link-local, where clouds keep their metadata"],
  ["172.16.0.0", 12, "private"],
  ["192.0.0.0", 24, "reserved"],
  ["192.0.2.0", 24, "for documentation"],
  ["192.88.99.0", 24, "reserved"],
  ["192.168.0.0", 16, "private"],
  ["198.18.0.0", 15, "for benchmarks"],
  ["198.51.100.0", 24, "for documentation"],
  ["203.0.113.0", 24, "for documentation"],
  ["224.0.0.0", 4, "multicast"],
  ["240.0.0.0", 4, "reserved"],
  ["::", 128, "unspecified"],
  ["::1", 128, "loopback"],
  ["64:ff9b:1::", 48, "translated to a private network"],
  ["100::", 64, "discarded"],
  ["2001::", 23, "reserved"],
  ["2001:db8::", 32, "for documentation"],
  ["2002::", 16, "a tunnel to an IPv4 address"],
  ["3fff::", 20, "for documentation"],
  ["5f00::", 16, "reserved"],
  ["fc00::", 7, "private"],
  ["fe80::", 10, "link-local"],
  ["fec0::", 10, "site-local"],
  ["ff00::", 8, "multicast"],
];
const closedLists = closed.map(([network, bits, what]) => ({ list: listOf(network, bits), what }));

/** A host with an address that may be asked, or throws. */
export class OutgoingGuard {
  readonly #hosts = new Set<string>();
  readonly #networks = new BlockList();
  readonly #resolve: NonNullable<OutgoingOptions["resolve"]>;

  /** Throws RangeError for an entry that is neither network, address nor host name. */
  constructor({ allow = [], resolve = resolveHost }: OutgoingOptions = {}) {
    this.#resolve = resolve;
    for (const entry of allow) this.#allow(entry);
  }

  #allow(entry: string): void {
    const [address = "", bits, ...more] = entry
      .trim()
      .replaceAll(/^\[|\]$/g, "")
      .split("/");
    const family = isIP(address);
    const most = family === 4 ? 32 : 128;
    const size = bits === undefined ? most : Number(bits);
    if (family !== 0 && more.length === 0 && /^\d{1,3}$/.test(bits ?? "0") && size <= most) return this.#networks.addSubnet(address, size, family === 4 ? "ipv4" : "ipv6");
    if (family === 0 && bits === undefined && /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/i.test(address)) return void this.#hosts.add(address.toLowerCase());
    throw new RangeError(`${JSON.stringify(entry)} is neither a network (10.0.0.0/8), an address nor a host name`);
  }

  /**
   * The addresses that a connection for this URL may go to; never empty. Throws OutgoingRefusedError.
   *
   * @param httpsOnly unencrypted HTTP is for allowed targets alone.
   */
  async addressesOf(url: URL, { httpsOnly = false }: { readonly httpsOnly?: boolean } = {}): Promise<readonly string[]> {
    const refuse = (problem: string, options?: ErrorOptions): OutgoingRefusedError => new OutgoingRefusedError(url.href, problem, options);
    if (url.protocol !== "https:" && url.protocol !== "http:") throw refuse(`${url.protocol} is neither https: nor http:`);
    if (url.username !== "" || url.password !== "") throw refuse("it holds a user or password; hand credentials over in a header");
    // The URL's own parser has made one spelling of all (0x7f.1, 2130706433, 127.1); a final dot is the same host.
    const host = url.hostname
      .replaceAll(/^\[|\]$/g, "")
      .replace(/\.$/, "")
      .toLowerCase();
    if (host === "") throw refuse("it names no host");
    const isAllowedHost = this.#hosts.has(host);
    let addresses: readonly string[];
    try {
      addresses = isIP(host) === 0 ? await this.#resolve(host) : [host];
    } catch (error) {
      throw refuse("its host has no address", { cause: error });
    }
    if (addresses.length === 0) throw refuse("its host has no address");
    let isOpen = true;
    for (const address of addresses) {
      if (isAllowedHost || this.#isAllowed(address)) continue;
      isOpen = false;
      const what = whatIsClosed(address);
      if (what !== undefined) throw refuse(`its address is ${what}; the operator can allow it (CAPSTAN_OUTGOING_ALLOW)`);
    }
    if (httpsOnly && url.protocol === "http:" && !isOpen) throw refuse("it is not encrypted; use https:");
    return addresses;
  }

  #isAllowed(address: string): boolean {
    const plain = unwrapped(address);
    return isIP(plain) !== 0 && this.#networks.check(plain, isIP(plain) === 4 ? "ipv4" : "ipv6");
  }
}

/** For a connection that goes to none but these addresses, whatever the name says by now. */
export function pinnedLookup(addresses: readonly string[]): LookupFunction {
  const all = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_host, options, callback) => {
    const fitting = options.family === 4 || options.family === 6 ? all.filter(({ family }) => family === options.family) : all;
    const [first] = fitting;
    if (first === undefined) return callback(new Error("no address of that family"), "", 0);
    if (options.all === true) return callback(null, fitting);
    callback(null, first.address, first.family);
  };
}

function whatIsClosed(address: string): string | undefined {
  const plain = unwrapped(address);
  const family = isIP(plain);
  if (family === 0) return "none that is known";
  return closedLists.find(({ list }) => list.check(plain, family === 4 ? "ipv4" : "ipv6"))?.what;
}

/** The IPv4 address that an IPv6 one stands for (mapped, compatible, translated), which is where the packets go. */
function unwrapped(address: string): string {
  const [bare = ""] = address.split("%");
  if (isIP(bare) !== 6) return bare;
  const groups = groupsOf(bare);
  const head = groups
    .slice(0, 6)
    .map((group) => group.toString(16))
    .join(":");
  const isWrapped = head === "0:0:0:0:0:ffff" || head === "0:0:0:0:ffff:0" || head === "64:ff9b:0:0:0:0" || (head === "0:0:0:0:0:0" && (groups[6] ?? 0) > 0);
  if (!isWrapped) return bare;
  const [high = 0, low = 0] = groups.slice(6);
  return [high >> 8, high & 255, low >> 8, low & 255].join(".");
}

function groupsOf(address: string): number[] {
  const dotted = /^(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(address);
  const text =
    dotted === null
      ? address
      : `${dotted[1] as string}${((Number(dotted[2]) << 8) | Number(dotted[3])).toString(16)}:${((Number(dotted[4]) << 8) | Number(dotted[5])).toString(16)}`;
  const [before = "", after] = text.split("::");
  const part = (piece: string): number[] => (piece === "" ? [] : piece.split(":").map((group) => Number.parseInt(group, 16)));
  const first = part(before);
  const last = part(after ?? "");
  return [...first, ...Array.from({ length: after === undefined ? 0 : 8 - first.length - last.length }, () => 0), ...last];
}

function listOf(network: string, bits: number): BlockList {
  const list = new BlockList();
  list.addSubnet(network, bits, isIP(network) === 4 ? "ipv4" : "ipv6");
  return list;
}

async function resolveHost(host: string): Promise<readonly string[]> {
  return (await dnsLookup(host, { all: true, verbatim: true })).map(({ address }) => address);
}

/** Without what may be secret in it. */
function shown(url: string): string {
  try {
    const { protocol, host } = new URL(url);
    return `${protocol}//${host}`;
  } catch {
    return "the address";
  }
}
