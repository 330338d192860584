/* The part of libblkid's interface for probers that docs/libblkid.md uses, so that the prober can be
 * compiled and run without the sources of util-linux. */
#ifndef SUPERBLOCKS_H
#define SUPERBLOCKS_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

#define le32_to_cpu(x) le32toh(x)
#define le64_to_cpu(x) le64toh(x)
#define BLKID_USAGE_FILESYSTEM (1 << 1)

typedef struct blkid_struct_probe *blkid_probe;

struct blkid_idmag {
	const char *magic;
	unsigned int len;
	unsigned int kboff;
};

struct blkid_idinfo {
	const char *name;
	int usage;
	int minsz;
	int (*probefunc)(blkid_probe pr, const struct blkid_idmag *mag);
	struct blkid_idmag magics[];
};

const unsigned char *blkid_probe_get_buffer(blkid_probe pr, uint64_t off, uint64_t len);
int blkid_probe_verify_csum(blkid_probe pr, uint64_t csum, uint64_t expected);
int blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len);
int blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid);
int blkid_probe_sprintf_version(blkid_probe pr, const char *fmt, ...);
int blkid_probe_set_block_size(blkid_probe pr, unsigned block_size);

#endif
