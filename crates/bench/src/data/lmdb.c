// SPDX-License-Identifier: Apache-2.0
// LMDB: gets by random keys.
#include "reader.h"
#include <lmdb.h>

#define FILE_NAME "data.mdb"
// A little more than the file.
#define MAP_BYTES (320 << 20)
#ifndef KEYS
#define KEYS 2600000
#define KEYS_IN_TRANSACTION 100000
#endif
#define GETS 2500000

static void must(int status, const char *what)
{
	check(status == MDB_SUCCESS, what);
}

static MDB_env *open_env(unsigned flags)
{
	MDB_env *env;
	must(mdb_env_create(&env), "mdb_env_create");
	must(mdb_env_set_mapsize(env, MAP_BYTES), "mdb_env_set_mapsize");
	must(mdb_env_open(env, FILE_NAME, MDB_NOSUBDIR | MDB_NOLOCK | flags, 0600), "mdb_env_open");
	return env;
}

static MDB_dbi begin(MDB_env *env, MDB_txn **txn, unsigned flags)
{
	MDB_dbi dbi;
	must(mdb_txn_begin(env, NULL, flags, txn), "mdb_txn_begin");
	must(mdb_dbi_open(*txn, NULL, 0, &dbi), "mdb_dbi_open");
	return dbi;
}

// Keys sort as their bytes do.
static MDB_val key_of(uint64_t key, uint64_t *bytes)
{
	*bytes = __builtin_bswap64(key);
	return (MDB_val){ sizeof *bytes, bytes };
}

static void make(void)
{
	MDB_env *env = open_env(MDB_NOSYNC);
	for (uint64_t key = 0; key < KEYS;) {
		MDB_txn *txn;
		MDB_dbi dbi = begin(env, &txn, 0);
		for (int n = 0; n < KEYS_IN_TRANSACTION; n++, key++) {
			uint64_t bytes;
			char value[VALUE_BYTES];
			fill(value, key);
			MDB_val name = key_of(key, &bytes), data = { sizeof value, value };
			must(mdb_put(txn, dbi, &name, &data, MDB_APPEND), "mdb_put");
		}
		must(mdb_txn_commit(txn), "mdb_txn_commit");
	}
	mdb_env_close(env);
}

static uint64_t read_at_random(int own)
{
	check(!own, "a switch of its own");
	MDB_txn *txn;
	MDB_dbi dbi = begin(open_env(MDB_RDONLY), &txn, MDB_RDONLY);
	uint64_t sum = 0;
	for (int n = 0; n < GETS; n++) {
		uint64_t bytes;
		MDB_val name = key_of(draw(KEYS), &bytes), data;
		must(mdb_get(txn, dbi, &name, &data), "mdb_get");
		sum += word(data.mv_data);
	}
	return sum;
}
