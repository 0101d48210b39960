/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry point of an AArch64 program, with a landing pad for any branch. Replaces crt1.o on
 * machines whose C library was built without branch protection.
 */
	.arch armv8.5-a
	.globl _start
	.type _start, %function
_start:
	bti	jc
	mov	x29, #0
	mov	x30, #0
	mov	x5, x0			/* rtld_fini */
	ldr	x1, [sp]		/* argc */
	add	x2, sp, #8		/* argv */
	mov	x6, sp			/* stack_end */
	adrp	x0, main
	add	x0, x0, :lo12:main
	mov	x3, #0			/* init, fini: nothing */
	mov	x4, #0
	bl	__libc_start_main
	udf	#0

	/* This object honours branch protection. */
	.section .note.GNU-stack, "", %progbits
	.section .note.gnu.property, "a"
	.balign	8
	.word	4, 16, 5
	.asciz	"GNU"
	.word	0xc0000000, 4, 1, 0	/* GNU_PROPERTY_AARCH64_FEATURE_1_AND: BTI */
