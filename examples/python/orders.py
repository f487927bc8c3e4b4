#!/usr/bin/env python3
"""A service layer as a Django or Flask application has one: orders and the runs about them, in one transaction.

Needs psycopg 3, and DATABASE_URL of a login that is a member of capstan_enqueuer (docs/sql.md, Rights): this code calls
five functions of Capstan and reads none of its tables. In Django, give `RunService` a cursor of `connection.cursor()`
inside `transaction.atomic()`: the run is there if and only if the block commits.

    python3 examples/python/orders.py
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

ENQUEUE = """
select capstan.enqueue_run(agent => %(agent)s, input => %(input)s, tenant => %(tenant)s,
  idempotency_key => %(key)s, budget => %(budget)s, actor => %(actor)s)
"""
STATUS = "select capstan.run_status(%(run_id)s)"
SEND = "select capstan.send(%(run_id)s, %(content)s, dedupe_key => %(key)s)"
CANCEL = "select capstan.cancel_run(%(run_id)s, %(reason)s)"


class KeyTaken(Exception):
    """The idempotency key belongs to a run with another input (KC001)."""


class QueueFull(Exception):
    """As many runs are queued as the operator allows (KC019): try again later."""


class NoSuchRun(Exception):
    """There is no such run, or none of this login's tenant (KC002)."""


ERRORS = {"KC001": KeyTaken, "KC002": NoSuchRun, "KC019": QueueFull}


class RunService:
    """Everything the application does with runs. The caller's transaction decides whether it happened."""

    def __init__(self, cursor: psycopg.Cursor[Any], tenant: str) -> None:
        self._cursor = cursor
        self._tenant = tenant

    def ask(self, question: str, *, key: str, max_tokens: int = 20_000) -> UUID:
        budget = {"hard": {"tokens": max_tokens}, "wrap_up": True}
        return self._call(
            ENQUEUE,
            agent="clerk",
            input=Jsonb({"question": question}),
            tenant=self._tenant,
            key=key,
            budget=Jsonb(budget),
            actor="orders.py",
        )

    def status(self, run_id: UUID) -> dict[str, Any]:
        return self._call(STATUS, run_id=run_id)

    def tell(self, run_id: UUID, content: str, *, key: str) -> UUID:
        return self._call(SEND, run_id=run_id, content=Jsonb(content), key=key)

    def cancel(self, run_id: UUID, reason: str) -> bool:
        return self._call(CANCEL, run_id=run_id, reason=reason)

    def _call(self, statement: str, **parameters: Any) -> Any:
        try:
            row = self._cursor.execute(statement, parameters).fetchone()
        except psycopg.Error as error:
            known = ERRORS.get(error.sqlstate or "")
            if known is None:
                raise
            raise known(error.diag.message_primary) from error
        assert row is not None
        return row[0]


@dataclass(frozen=True)
class Order:
    number: str
    run_id: UUID


def place_order(connection: psycopg.Connection[Any], number: str, question: str) -> Order:
    """The order and its run: both or neither."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("create temp table if not exists orders (number text primary key, run_id uuid)")
        run_id = RunService(cursor, "shop").ask(question, key=f"order {number}")
        cursor.execute(
            "insert into orders (number, run_id) values (%s, %s) on conflict (number) do nothing", (number, run_id)
        )
    return Order(number, run_id)


def wait_for(connection: psycopg.Connection[Any], run_id: UUID, seconds: float) -> dict[str, Any]:
    """Polls between transactions: an open one would keep the database from cleaning up."""
    deadline = time.monotonic() + seconds
    while True:
        with connection.transaction(), connection.cursor() as cursor:
            status = RunService(cursor, "shop").status(run_id)
        if "finished_at" in status or time.monotonic() > deadline:
            return status
        time.sleep(0.2)


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        order = place_order(connection, "31", "Where is order 31?")
        again = place_order(connection, "31", "Where is order 31?")
        print("the same run" if again.run_id == order.run_id else "another run")

        try:
            place_order(connection, "31", "Something else?")
        except KeyTaken:
            print("that key is taken")

        try:
            with connection.transaction(), connection.cursor() as cursor:
                RunService(cursor, "shop").ask("Where is order 32?", key="order 32")
                raise RuntimeError("the order could not be saved")
        except RuntimeError:
            print("no order, no run")

        with connection.transaction(), connection.cursor() as cursor:
            runs = RunService(cursor, "shop")
            runs.tell(order.run_id, "The customer called again.", key="call 1")
            print(f"order 31 is {runs.status(order.run_id)['state']}")

        if len(sys.argv) > 1:
            status = wait_for(connection, order.run_id, float(sys.argv[1]))
            print(status.get("output", status["state"]))


if __name__ == "__main__":
    main()
