// SPDX-License-Identifier: Apache-2.0
// SQLite: rows by random rowids, through a mapping of the file; with its own switch, through a cache as large as the file.
#include "reader.h"
#include <sqlite3.h>

#define FILE_NAME "data.db"
#ifndef ROWS
#define ROWS 2600000
#endif
#define SELECTS 1300000

static void run(sqlite3 *db, const char *statement)
{
	check(sqlite3_exec(db, statement, NULL, NULL, NULL) == SQLITE_OK, statement);
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *statement)
{
	sqlite3_stmt *prepared;
	check(sqlite3_prepare_v2(db, statement, -1, &prepared, NULL) == SQLITE_OK, statement);
	return prepared;
}

static void make(void)
{
	sqlite3 *db;
	check(sqlite3_open(FILE_NAME, &db) == SQLITE_OK, "sqlite3_open");
	run(db, "PRAGMA journal_mode=off; PRAGMA synchronous=off; CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB); BEGIN");
	sqlite3_stmt *insert = prepare(db, "INSERT INTO t VALUES (?, ?)");
	for (int64_t row = 0; row < ROWS; row++) {
		char value[VALUE_BYTES];
		fill(value, (uint64_t)row);
		sqlite3_bind_int64(insert, 1, row);
		sqlite3_bind_blob(insert, 2, value, sizeof value, SQLITE_TRANSIENT);
		check(sqlite3_step(insert) == SQLITE_DONE, "INSERT");
		sqlite3_reset(insert);
	}
	sqlite3_finalize(insert);
	run(db, "COMMIT");
	check(sqlite3_close(db) == SQLITE_OK, "sqlite3_close");
}

static uint64_t read_at_random(int own)
{
	sqlite3 *db;
	int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
	check(sqlite3_open_v2("file:" FILE_NAME "?immutable=1", &db, flags, NULL) == SQLITE_OK, "sqlite3_open_v2");
	run(db, own ? "PRAGMA mmap_size=0; PRAGMA cache_size=-1000000" : "PRAGMA mmap_size=1000000000");
	sqlite3_stmt *select = prepare(db, "SELECT v FROM t WHERE id = ?");
	uint64_t sum = 0;
	for (int n = 0; n < SELECTS; n++) {
		sqlite3_bind_int64(select, 1, (int64_t)draw(ROWS));
		check(sqlite3_step(select) == SQLITE_ROW, "SELECT");
		sum += word(sqlite3_column_blob(select, 0));
		sqlite3_reset(select);
	}
	return sum;
}
