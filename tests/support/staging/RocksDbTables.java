import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.ChecksumType;
import org.rocksdb.CompressionType;
import org.rocksdb.EnvOptions;
import org.rocksdb.Options;
import org.rocksdb.ReadOptions;
import org.rocksdb.RocksDB;
import org.rocksdb.SstFileReader;
import org.rocksdb.SstFileReaderIterator;
import org.rocksdb.SstFileWriter;

/** Reads and writes tables with the RocksDB that Spark ships. One command a line; one answer a line. */
public final class RocksDbTables {
    public static void main(String[] arguments) throws Exception {
        RocksDB.loadLibrary();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                answer = "ok " + run(words);
            } catch (Exception error) {
                answer = "error " + error.getMessage();
            }
            System.out.println(answer);
            System.out.flush();
        }
    }

    private static Options options() {
        BlockBasedTableConfig table = new BlockBasedTableConfig();
        table.setFormatVersion(2).setChecksumType(ChecksumType.kCRC32c).setBlockSize(4096);
        return new Options().setTableFormatConfig(table).setCompressionType(CompressionType.SNAPPY_COMPRESSION);
    }

    private static long run(String[] words) throws Exception {
        try (Options options = options();
                SstFileReader reader = new SstFileReader(options);
                ReadOptions reading = new ReadOptions().setVerifyChecksums(true)) {
            reader.open(words[1]);
            switch (words[0]) {
                case "verify":
                    reader.verifyChecksum();
                    return reader.getTableProperties().getNumEntries();
                case "seek":
                    return seek(reader, reading, words);
                case "dump":
                    return dump(reader, reading, words[2]);
                case "read":
                    return scan(reader, reading, null);
                default:
                    try (EnvOptions environment = new EnvOptions();
                            SstFileWriter writer = new SstFileWriter(environment, options)) {
                        writer.open(words[2]);
                        long records = scan(reader, reading, writer);
                        writer.finish();
                        return records;
                    }
            }
        }
    }

    private static long scan(SstFileReader reader, ReadOptions reading, SstFileWriter writer) throws Exception {
        long records = 0;
        try (SstFileReaderIterator each = reader.newIterator(reading)) {
            for (each.seekToFirst(); each.isValid(); each.next()) {
                byte[] key = each.key();
                byte[] value = each.value();
                if (writer != null) {
                    writer.put(key, value);
                }
                records += 1;
            }
            each.status();
        }
        return records;
    }

    /** The number of records from the key (in hexadecimal) on. */
    private static long seek(SstFileReader reader, ReadOptions reading, String[] words) throws Exception {
        byte[] key = new byte[words[2].length() / 2];
        for (int at = 0; at < key.length; at++) {
            key[at] = (byte) Integer.parseInt(words[2].substring(2 * at, 2 * at + 2), 16);
        }
        long records = 0;
        try (SstFileReaderIterator each = reader.newIterator(reading)) {
            for (each.seek(key); each.isValid(); each.next()) {
                records += 1;
            }
        }
        return records;
    }

    private static long dump(SstFileReader reader, ReadOptions reading, String path) throws Exception {
        long records = 0;
        try (SstFileReaderIterator each = reader.newIterator(reading);
                DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path)))) {
            for (each.seekToFirst(); each.isValid(); each.next()) {
                for (byte[] part : new byte[][] {each.key(), each.value()}) {
                    out.writeInt(part.length);
                    out.write(part);
                }
                records += 1;
            }
        }
        return records;
    }
}
