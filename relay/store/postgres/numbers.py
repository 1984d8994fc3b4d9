"""Numbers of new rows, drawn before they are written, so that the write can be repeated."""

from relay.store.postgres.connection import Connection


async def draw(connection: Connection, sequence: str) -> int:
    """Return the next number of `TABLE_COLUMN_seq`; raises StoreUnavailable.

    A number that is not used in the end is missing from the table.
    """
    sql = f"SELECT nextval('relay.{sequence}')"
    return await connection.read(lambda db: int(db.execute(sql).fetchall()[0][0]))
