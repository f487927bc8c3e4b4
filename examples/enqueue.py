#!/usr/bin/env python3
"""Enqueues a run in the caller's own transaction and reads its status. Needs psycopg 3 and DATABASE_URL.

    python3 examples/enqueue.py
"""

import os

import psycopg
from psycopg.types.json import Jsonb

ENQUEUE = """
select capstan.enqueue_run(agent => %(agent)s, input => %(input)s, idempotency_key => %(key)s)
"""
STATUS = "select capstan.run_status(%(run_id)s::uuid)"


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        # One transaction: if anything in this block raises, there is neither an order nor a run.
        with connection.transaction():
            connection.execute("create table if not exists orders (id text primary key, note text not null)")
            connection.execute(
                "insert into orders (id, note) values (%s, %s) on conflict do nothing", ("9", "ring twice")
            )
            row = connection.execute(
                ENQUEUE,
                {"agent": "clerk", "input": Jsonb({"question": "Where is order 9?"}), "key": "order 9"},
            ).fetchone()
        run_id = row[0]

        try:
            with connection.transaction():
                connection.execute(
                    ENQUEUE, {"agent": "clerk", "input": Jsonb({"question": "Another one?"}), "key": "order 9"}
                )
        except psycopg.Error as error:
            # KC001: the key belongs to a run with another input. docs/sql.md lists all of Capstan's SQLSTATEs.
            print(f"refused with {error.sqlstate}")

        status = connection.execute(STATUS, {"run_id": run_id}).fetchone()[0]
        print(f"{run_id} is {status['state']}")


if __name__ == "__main__":
    main()
