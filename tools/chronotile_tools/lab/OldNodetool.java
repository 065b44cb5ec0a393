import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.tools.NodeTool;

/**
 * Runs nodetool of Cassandra 3.11 on a newer Java than it supports. The initialization of one of its classes fails
 * permanently, because methods of Java 8 are missing, unless the settings were loaded before.
 */
class OldNodetool {
    public static void main(String[] arguments) {
        DatabaseDescriptor.toolInitialization();
        NodeTool.main(arguments);
    }
}
