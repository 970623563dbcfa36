"""The deletion of what a block store no longer needs: replaced and expired blocks after the grace, and orphans."""
