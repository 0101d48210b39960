// SPDX-License-Identifier: Apache-2.0
// What the loop of builds compiles: templates, and no header.
template <int N> struct Sum {
	static int of(const int *p) { return p[N % 64] * N + Sum<N - 1>::of(p); }
};
template <> struct Sum<0> {
	static int of(const int *p) { return p[0]; }
};
template <int A, int B> int product(const int *p)
{
	return Sum<A>::of(p) * Sum<B>::of(p + 1);
}
int work(const int *p)
{
	return product<300, 200>(p) + product<250, 150>(p) + product<220, 120>(p) + product<180, 90>(p);
}
