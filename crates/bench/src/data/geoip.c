// SPDX-License-Identifier: Apache-2.0
// libmaxminddb: look-ups of random IPv4 addresses. The database is made here, in the MaxMind DB format 2.0: a binary tree over
// the bits of an address, its nodes in the order of their addresses, whose leaves are networks of 16 to 24 bits.
#include "reader.h"
#include <arpa/inet.h>
#include <maxminddb.h>

#define FILE_NAME "data.mmdb"
#define SHORTEST 16
#define LONGEST 24
#define PLACES 200000
// {"city": 8 digits, "id": 32 bits}
#define PLACE_BYTES 23
#define SEPARATOR_BYTES 16
#define LOOKUPS 2000000

enum { UTF8 = 2, UINT16 = 5, UINT32 = 6, MAP = 7, UINT64 = 9, ARRAY = 11 };

// Two records a node; room for each node that there could be.
static uint32_t (*tree)[2];
static uint32_t nodes, all_nodes;

static uint32_t mixed(uint32_t prefix, uint32_t depth)
{
	uint64_t hash = (((uint64_t)depth << 32 | prefix) + 1) * 0x9e3779b97f4a7c15u;
	return (uint32_t)((hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u >> 32);
}

// Returns the record of a network, after it has added the nodes below it. One network in 32 has no smaller ones.
static uint32_t grow(uint32_t prefix, uint32_t depth)
{
	uint32_t hash = mixed(prefix, depth);
	if (depth == LONGEST || (depth >= SHORTEST && hash % 32 == 0))
		return all_nodes + SEPARATOR_BYTES + (hash >> 5) % PLACES * PLACE_BYTES;
	uint32_t node = nodes++;
	for (uint32_t bit = 0; bit < 2; bit++)
		tree[node][bit] = htonl(grow(prefix << 1 | bit, depth + 1));
	return node;
}

static void put(FILE *file, int type, size_t size)
{
	fputc(type << 5 | (int)size, file);
}

// The types from 8 on are in a second byte.
static void put_extended(FILE *file, int type, size_t size)
{
	put(file, 0, size);
	fputc(type - 7, file);
}

static void put_text(FILE *file, const char *text)
{
	put(file, UTF8, strlen(text));
	fputs(text, file);
}

static void put_number(FILE *file, int type, uint32_t number)
{
	uint32_t bytes = htonl(number);
	size_t size = type == UINT16 ? 2 : 4;
	put(file, type, size);
	fwrite((char *)&bytes + 4 - size, size, 1, file);
}

static void put_place(FILE *file, uint32_t place)
{
	char city[9];
	snprintf(city, sizeof city, "%08u", place);
	put(file, MAP, 2);
	put_text(file, "city");
	put_text(file, city);
	put_text(file, "id");
	put_number(file, UINT32, place);
}

static void put_setting(FILE *file, const char *name, uint32_t number)
{
	put_text(file, name);
	put_number(file, UINT16, number);
}

static void put_metadata(FILE *file)
{
	fputs("\xab\xcd\xefMaxMind.com", file);
	put(file, MAP, 9);
	put_text(file, "node_count");
	put_number(file, UINT32, all_nodes);
	put_setting(file, "record_size", 32);
	put_setting(file, "ip_version", 4);
	put_setting(file, "binary_format_major_version", 2);
	put_setting(file, "binary_format_minor_version", 0);
	put_text(file, "database_type");
	put_text(file, "Made");
	put_text(file, "build_epoch");
	put_extended(file, UINT64, 1);
	fputc(1, file);
	put_text(file, "languages");
	put_extended(file, ARRAY, 1);
	put_text(file, "en");
	put_text(file, "description");
	put(file, MAP, 1);
	put_text(file, "en");
	put_text(file, "made for a benchmark");
}

static void make(void)
{
	tree = calloc(1 << LONGEST, sizeof *tree);
	FILE *file = fopen(FILE_NAME, "w");
	check(tree && file, "calloc or fopen");
	// The records of places depend on how many nodes there are.
	grow(0, 0);
	all_nodes = nodes;
	nodes = 0;
	grow(0, 0);
	fwrite(tree, sizeof *tree, all_nodes, file);
	fwrite((char[SEPARATOR_BYTES]){ 0 }, SEPARATOR_BYTES, 1, file);
	for (uint32_t place = 0; place < PLACES; place++)
		put_place(file, place);
	put_metadata(file);
	check(!ferror(file) && fclose(file) == 0, "writing the database");
}

static uint64_t read_at_random(int own)
{
	MMDB_s db;
	check(!own, "a switch of its own");
	check(MMDB_open(FILE_NAME, MMDB_MODE_MMAP, &db) == MMDB_SUCCESS, "MMDB_open");
	uint64_t sum = 0;
	for (int n = 0; n < LOOKUPS; n++) {
		struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl((uint32_t)draw(1u << 31) << 1) };
		int error;
		MMDB_lookup_result_s found = MMDB_lookup_sockaddr(&db, (struct sockaddr *)&address, &error);
		MMDB_entry_data_s id;
		check(error == MMDB_SUCCESS && found.found_entry, "MMDB_lookup_sockaddr");
		check(MMDB_get_value(&found.entry, &id, "id", NULL) == MMDB_SUCCESS, "MMDB_get_value");
		sum += id.uint32;
	}
	return sum;
}
