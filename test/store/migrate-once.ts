/** One migrating process: prints what it did. */
import { migrate } from "../../src/store/migrate.ts";

const report = await migrate({ connectionString: process.argv[2] as string });
process.stdout.write(JSON.stringify(report));
