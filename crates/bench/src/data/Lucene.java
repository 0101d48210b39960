// SPDX-License-Identifier: Apache-2.0

import java.nio.file.Path;
import java.util.Random;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.SerialMergeScheduler;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.store.MMapDirectory;

/** Lucene: searches for random terms in an index that is mapped. The words are those of reader.h. */
class Lucene {
	static final int DOCUMENTS = 1_400_000;
	static final int TERMS_OF_A_DOCUMENT = 10;
	static final int SEARCHES = 400_000;

	/** Returns the text of a term, which has nothing in common with those of the next numbers. */
	static String term(long number) {
		return Long.toString((number + 1) * 0x9e3779b97f4a7c15L, Character.MAX_RADIX);
	}

	static void make(MMapDirectory directory) throws Exception {
		IndexWriterConfig config = new IndexWriterConfig(new StandardAnalyzer());
		config.setUseCompoundFile(false).setRAMBufferSizeMB(256).setMergeScheduler(new SerialMergeScheduler());
		try (IndexWriter writer = new IndexWriter(directory, config)) {
			for (int n = 0; n < DOCUMENTS; n++) {
				Document document = new Document();
				for (int i = 0; i < TERMS_OF_A_DOCUMENT; i++)
					document.add(new StringField("t", term((long) n * TERMS_OF_A_DOCUMENT + i), Field.Store.NO));
				writer.addDocument(document);
			}
			writer.forceMerge(1);
		}
	}

	static long read(MMapDirectory directory) throws Exception {
		IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(directory));
		Random random = new Random(31);
		long sum = 0;
		for (int n = 0; n < SEARCHES; n++) {
			Term term = new Term("t", term(random.nextInt(DOCUMENTS * TERMS_OF_A_DOCUMENT)));
			sum += searcher.search(new TermQuery(term), 1).scoreDocs[0].doc;
		}
		return sum;
	}

	public static void main(String[] words) throws Exception {
		MMapDirectory directory = new MMapDirectory(Path.of(words[1]));
		if (words[0].equals("make")) {
			make(directory);
			return;
		}
		System.out.println(read(directory));
		while (System.in.read() >= 0) {}
	}
}
