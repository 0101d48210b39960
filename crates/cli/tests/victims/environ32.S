/* SPDX-License-Identifier: Apache-2.0 */
/* A program without any library: writes its environment, one variable per line, and exits with 42. For
 * 32-bit x86, whose system calls go through int 0x80. */
	.globl	_start
	.text
_start:	movl	(%esp), %eax		/* argc */
	leal	8(%esp,%eax,4), %esi	/* envp */
next:	movl	(%esi), %ecx
	testl	%ecx, %ecx
	jz	done
	addl	$4, %esi
	xorl	%edx, %edx
length:	cmpb	$0, (%ecx,%edx)
	je	write
	incl	%edx
	jmp	length
write:	movl	$4, %eax
	movl	$1, %ebx
	int	$0x80
	movl	$4, %eax
	movl	$newline, %ecx
	movl	$1, %edx
	int	$0x80
	jmp	next
done:	movl	$1, %eax
	movl	$42, %ebx
	int	$0x80
newline: .ascii	"\n"
	.section .note.GNU-stack,"",@progbits
