// SPDX-License-Identifier: Apache-2.0

import java.lang.invoke.MethodHandles;

/**
 * Calls thousands of compiled methods at random. They are those of one class, which is defined again and again under hidden
 * names: the JVM compiles each copy for itself.
 */
final class Jit {
    /** A copy. */
    interface Code {
        int call(int method, int x);
    }

    /** More calls of a method than it needs to be compiled. */
    private static final int WARM_UP = 300;

    public static void main(String[] args) throws Exception {
        int copies = Integer.parseInt(args[0]);
        int methods = Integer.parseInt(args[1]);
        int calls = Integer.parseInt(args[2]);
        byte[] template;
        try (var in = Jit.class.getResourceAsStream("Template.class")) {
            template = in.readAllBytes();
        }
        Code[] all = new Code[copies];
        for (int i = 0; i < copies; i++) {
            var copy = MethodHandles.lookup().defineHiddenClass(template, true).lookupClass();
            all[i] = (Code) copy.getDeclaredConstructor().newInstance();
        }
        int sum = 0;
        for (Code code : all) {
            for (int i = 0; i < WARM_UP * methods; i++) {
                sum += code.call(i % methods, i * 7919);
            }
        }
        sum += work(all, methods, calls / 10);
        System.out.println("ready");
        System.in.read();
        System.out.println(sum + " " + work(all, methods, calls));
        System.in.read();
    }

    private static int work(Code[] all, int methods, int calls) {
        int sum = 0;
        int random = 1;
        for (int i = 0; i < calls; i++) {
            random ^= random << 13;
            random ^= random >>> 17;
            random ^= random << 5;
            int which = (random >>> 1) % (all.length * methods);
            sum += all[which / methods].call(which % methods, random >>> 7);
        }
        return sum;
    }
}
