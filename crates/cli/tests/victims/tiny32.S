/* SPDX-License-Identifier: Apache-2.0 */
/* A program without any library: writes a word and exits with 42. For 32-bit x86, whose
 * system calls go through int 0x80. */
	.globl	_start
	.text
_start:	movl	$4, %eax
	movl	$1, %ebx
	movl	$word, %ecx
	movl	$3, %edx
	int	$0x80
	movl	$1, %eax
	movl	$42, %ebx
	int	$0x80
word:	.ascii	"32\n"
	.section .note.GNU-stack,"",@progbits
