/* SPDX-License-Identifier: Apache-2.0 */
/* `profile FILE PROG ARGS`: starts a program under the seccomp filter that libseccomp makes of FILE, as container runtimes do. Each
 * line has an action (allow, or errno and its number), a system call, and conditions of its arguments: index, operation and two
 * values. The first line has the action for all other calls. Calls that this machine does not have are left out. */
#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t action(char **words)
{
	char *word = strtok_r(NULL, " \n", words);
	if (word && !strcmp(word, "allow"))
		return SCMP_ACT_ALLOW;
	char *number = word && !strcmp(word, "errno") ? strtok_r(NULL, " \n", words) : NULL;
	if (!number)
		exit(91);
	return SCMP_ACT_ERRNO(atoi(number));
}

static enum scmp_compare operation(const char *name)
{
	return !strcmp(name, "EQ") ? SCMP_CMP_EQ : !strcmp(name, "NE") ? SCMP_CMP_NE : !strcmp(name, "MASKED_EQ") ? SCMP_CMP_MASKED_EQ : (exit(92), 0);
}

int main(int argc, char **argv)
{
	char line[1024];
	FILE *file = argc > 2 ? fopen(argv[1], "r") : NULL;
	if (!file || !fgets(line, sizeof line, file))
		return 93;
	char *words = line;
	scmp_filter_ctx filter = seccomp_init(action(&words));
	/* Runtimes load it with CAP_SYS_ADMIN, before they drop that. */
	if (!filter || seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0))
		return 94;
#ifdef __x86_64__
	if (seccomp_arch_add(filter, SCMP_ARCH_X86) || seccomp_arch_add(filter, SCMP_ARCH_X32))
		return 95;
#endif
	while (fgets(line, sizeof line, file)) {
		words = line;
		uint32_t what = action(&words);
		char *name = strtok_r(NULL, " \n", &words), *word;
		int call = name ? seccomp_syscall_resolve_name(name) : __NR_SCMP_ERROR;
		if (call == __NR_SCMP_ERROR)
			continue;
		struct scmp_arg_cmp conditions[6];
		unsigned count = 0;
		while (count < 6 && (word = strtok_r(NULL, " \n", &words))) {
			conditions[count].arg = (unsigned)atoi(word);
			conditions[count].op = operation(strtok_r(NULL, " \n", &words));
			conditions[count].datum_a = strtoull(strtok_r(NULL, " \n", &words), NULL, 10);
			conditions[count++].datum_b = strtoull(strtok_r(NULL, " \n", &words), NULL, 10);
		}
		int failed = seccomp_rule_add_array(filter, what, call, count, conditions);
		/* -EACCES: the action is that of all other calls; -EDOM: no such call on an architecture. */
		if (failed && failed != -EACCES && failed != -EDOM) {
			fprintf(stderr, "%s: %s\n", name, strerror(-failed));
			return 96;
		}
	}
	fclose(file);
	if (seccomp_load(filter))
		return 97;
	seccomp_release(filter);
	execvp(argv[2], argv + 2);
	return 98;
}
