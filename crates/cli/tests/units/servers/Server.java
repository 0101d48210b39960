// SPDX-License-Identifier: Apache-2.0
// Answers each request with a digest of a list that it makes, sorts and prints.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;

public class Server {
    static byte[] work() throws Exception {
        ArrayList<String> list = new ArrayList<>();
        for (int i = 0; i < 2000; i++) {
            list.add(String.format("%d name %d", (i * 7919) % 1009, i).replaceAll("name ([0-9]+)", "n$1"));
        }
        Collections.sort(list);
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(String.join(",", list).getBytes());
        StringBuilder text = new StringBuilder();
        for (byte one : digest) {
            text.append(String.format("%02x", one));
        }
        return text.append('\n').toString().getBytes();
    }

    public static void main(String[] words) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8002), 0);
        server.createContext("/", exchange -> {
            try {
                byte[] answer = work();
                exchange.sendResponseHeaders(200, answer.length);
                exchange.getResponseBody().write(answer);
            } catch (Exception error) {
                exchange.sendResponseHeaders(500, -1);
            }
            exchange.close();
        });
        server.start();
    }
}
