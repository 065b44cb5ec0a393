import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.tools.NodeTool;

/**
 * Runs nodetool of Cassandra 3.11 on a newer Java than it knows. One of its classes finds methods of Java 8 missing, and
 * fails for good unless the settings are loaded by then.
 */
class OldNodetool {
    public static void main(String[] arguments) {
        DatabaseDescriptor.toolInitialization();
        NodeTool.main(arguments);
    }
}
