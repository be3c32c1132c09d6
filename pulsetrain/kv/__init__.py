"""What must outlive a hub: keys with revisions, in a folder of this machine or in etcd."""
