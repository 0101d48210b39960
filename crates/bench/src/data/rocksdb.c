// SPDX-License-Identifier: Apache-2.0
// RocksDB: gets by random keys through mappings of large table files; with its own switch, through a block cache as large as
// the files.
#include "reader.h"
#include <rocksdb/c.h>

#define KEYS 2600000
#define GETS 600000
#define FILE_BYTES (64 << 20)
#define CACHE_BYTES (1 << 30)

static char *failed;

static rocksdb_options_t *options(int own)
{
	rocksdb_options_t *all = rocksdb_options_create();
	rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
	rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(CACHE_BYTES));
	rocksdb_options_set_block_based_table_factory(all, table);
	rocksdb_options_set_create_if_missing(all, 1);
	rocksdb_options_set_compression(all, rocksdb_no_compression);
	rocksdb_options_set_target_file_size_base(all, FILE_BYTES);
	rocksdb_options_set_write_buffer_size(all, FILE_BYTES);
	rocksdb_options_set_allow_mmap_reads(all, !own);
	return all;
}

static const char *key_of(uint64_t key, uint64_t *bytes)
{
	*bytes = __builtin_bswap64(key);
	return (const char *)bytes;
}

static void make(void)
{
	rocksdb_t *db = rocksdb_open(options(0), ".", &failed);
	check(!failed, "rocksdb_open");
	rocksdb_writeoptions_t *how = rocksdb_writeoptions_create();
	rocksdb_writeoptions_disable_WAL(how, 1);
	for (uint64_t key = 0; key < KEYS; key++) {
		uint64_t bytes;
		char value[VALUE_BYTES];
		fill(value, key);
		rocksdb_put(db, how, key_of(key, &bytes), sizeof bytes, value, sizeof value, &failed);
		check(!failed, "rocksdb_put");
	}
	rocksdb_compact_range(db, NULL, 0, NULL, 0);
	rocksdb_close(db);
}

static uint64_t read_at_random(int own)
{
	rocksdb_t *db = rocksdb_open_for_read_only(options(own), ".", 0, &failed);
	check(!failed, "rocksdb_open_for_read_only");
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	// A block that is mapped would be checked again at each get, one in the cache would not.
	rocksdb_readoptions_set_verify_checksums(how, 0);
	uint64_t sum = 0;
	for (int n = 0; n < GETS; n++) {
		uint64_t bytes;
		const char *key = key_of(draw(KEYS), &bytes);
		rocksdb_pinnableslice_t *slice = rocksdb_get_pinned(db, how, key, sizeof bytes, &failed);
		check(!failed && slice, "rocksdb_get_pinned");
		size_t length;
		sum += word(rocksdb_pinnableslice_value(slice, &length));
		rocksdb_pinnableslice_destroy(slice);
	}
	return sum;
}
