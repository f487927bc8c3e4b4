/**
 * What all tables are made of. This folder holds tables only: columns that later capabilities need have their place from
 * the first migration; statements where locks, order or plans matter stand in ../sql.
 */
import { bigint, customType, pgSchema, timestamp } from "drizzle-orm/pg-core";

export const capstan = pgSchema("capstan");

export const bytea = customType<{ data: Buffer; driverData: Buffer }>({ dataType: () => "bytea" });
export const at = (name: string) => timestamp(name, { withTimezone: true });
export const big = (name: string) => bigint(name, { mode: "number" });
