/* SPDX-License-Identifier: Apache-2.0 */
/* A program as users of iodlr's library write it. Usage: large_page [REGEX] */
#include <large_page.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	bool enabled = false;
	map_status status = IsLargePagesEnabled(&enabled);
	if (status != map_ok || !enabled) {
		printf("not enabled: %s\n", MAP_STATUS_STR(status));
		return 1;
	}
	status = argc > 1 ? MapDSOToLargePages(argv[1]) : MapStaticCodeToLargePages();
	printf("%s (%s)\n", MAP_STATUS_STR_SHORT(status), MAP_STATUS_STR(status));
	return status != map_ok;
}
