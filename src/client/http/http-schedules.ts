/** Schedules by requests. */
import { randomUUID } from "node:crypto";
import type { SchedulesApi } from "../api.ts";
import { checkSettings } from "../schedule-settings.ts";
import type { ScheduleDetail, ScheduleRef, ScheduleView } from "../schedules.ts";
import type { ApiRequests } from "./api-requests.ts";
import { refuseOverHttp, withoutUndefined } from "./wire.ts";

export function schedulesOverHttp(api: ApiRequests): SchedulesApi {
  const pathOf = (name: string, rest = ""): string => `/schedules/${encodeURIComponent(name)}${rest}`;
  const act = async (name: string, verb: "pause" | "resume", ref: ScheduleRef): Promise<boolean> => {
    refuseOverHttp(verb, ref);
    return (await api.json<{ changed: boolean }>({ method: "POST", path: pathOf(name, `/${verb}`), body: {}, repeatable: true })).changed;
  };
  return {
    async create(name, { tx, replace = false, ...settings }) {
      refuseOverHttp("create", { tx, tenant: settings.tenant, actor: settings.actor });
      const { agent, input, catchUp, options } = checkSettings(name, settings);
      const body = withoutUndefined({ name, agent, input, cron: settings.cron, timezone: settings.timezone, catch_up: catchUp, replace, ...options });
      return await api.json<ScheduleDetail>({ method: "POST", path: "/schedules", body, repeatable: replace });
    },
    async list({ tenant } = {}) {
      refuseOverHttp("list", { tenant });
      return (await api.json<{ items: ScheduleView[] }>({ method: "GET", path: "/schedules" })).items;
    },
    async get(name, ref = {}) {
      refuseOverHttp("get", ref);
      return await api.json<ScheduleDetail>({ method: "GET", path: pathOf(name) });
    },
    pause: (name, ref) => act(name, "pause", ref ?? {}),
    resume: (name, ref) => act(name, "resume", ref ?? {}),
    async delete(name, ref = {}) {
      refuseOverHttp("delete", ref);
      await api.json({ method: "DELETE", path: pathOf(name) });
    },
    async runNow(name, { idempotencyKey = randomUUID(), ...ref } = {}) {
      refuseOverHttp("runNow", ref);
      return (await api.json<{ run_id: string }>({ method: "POST", path: pathOf(name, "/run"), body: {}, idempotencyKey })).run_id;
    },
  };
}
