/* SPDX-License-Identifier: Apache-2.0 */
/* Prints whether hugelift's library is loaded, and what a thread of each kind returns. With
 * the argument x it reads memory that it has freed, where AddressSanitizer ends it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

/* Something to put on huge pages. */
static volatile char zeros[8 << 20];

static void *thread(void *argument)
{
	volatile char *block = malloc(16);
	block[3] = 1;
	free((void *)block);
	return argument;
}

static int thread11(void *argument)
{
	return *(int *)argument;
}

static int is_loaded(const char *name)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, name) != NULL;
	if (maps)
		fclose(maps);
	return found;
}

int main(int argc, char **argv)
{
	pthread_t one;
	thrd_t two;
	void *first = NULL;
	int five = 5, second = 0;

	if (pthread_create(&one, NULL, thread, (void *)7) || pthread_join(one, &first))
		return 90;
#ifdef __SANITIZE_THREAD__ /* whose runtime does not know thrd_create */
	(void)two;
	second = thread11(&five);
#else
	if (thrd_create(&two, thread11, &five) != thrd_success || thrd_join(two, &second) != thrd_success)
		return 91;
#endif
	printf("library %d, threads %ld %d, zero %d\n", is_loaded("libhugelift_inside.so"), (long)first,
	       second, zeros[(size_t)argc << 12]);
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "x")) {
		volatile char *gone = malloc(8);
		free((void *)gone);
		return gone[1] & 0;
	}
	return 3;
}
