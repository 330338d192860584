/* Runs the prober of docs/libblkid.md on a file, as libblkid would: by the magic first. Prints
 * properties as blkid(8); exits with 2 if there is none. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "superblocks.h"

extern const struct blkid_idinfo pramfs_idinfo;

struct blkid_struct_probe {
	FILE *file;
	unsigned char buffer[4096];
};

const unsigned char *blkid_probe_get_buffer(blkid_probe pr, uint64_t off, uint64_t len)
{
	errno = 0;
	if (len > sizeof(pr->buffer) || fseek(pr->file, (long) off, SEEK_SET) != 0 ||
	    fread(pr->buffer, 1, len, pr->file) != len)
		return NULL;
	return pr->buffer;
}

int blkid_probe_verify_csum(blkid_probe pr, uint64_t csum, uint64_t expected)
{
	(void) pr;
	return csum == expected;
}

int blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len)
{
	(void) pr;
	printf("LABEL=%.*s\n", (int) len, (const char *) label);
	return 0;
}

int blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid)
{
	(void) pr;
	printf("UUID=");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	printf("\n");
	return 0;
}

int blkid_probe_sprintf_version(blkid_probe pr, const char *fmt, ...)
{
	va_list args;

	(void) pr;
	printf("VERSION=");
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	return 0;
}

int blkid_probe_set_block_size(blkid_probe pr, unsigned block_size)
{
	(void) pr;
	printf("BLOCK_SIZE=%u\n", block_size);
	return 0;
}

int main(int argc, char **argv)
{
	struct blkid_struct_probe pr;
	const struct blkid_idmag *mag;

	if (argc != 2 || !(pr.file = fopen(argv[1], "rb")))
		return 4;
	fseek(pr.file, 0, SEEK_END);
	if (ftell(pr.file) < pramfs_idinfo.minsz)
		return 2;
	for (mag = pramfs_idinfo.magics; mag->magic; mag++) {
		const unsigned char *found = blkid_probe_get_buffer(&pr, (uint64_t) mag->kboff << 10, mag->len);

		if (!found || memcmp(found, mag->magic, mag->len) != 0)
			continue;
		if (pramfs_idinfo.probefunc(&pr, mag) != 0)
			return 2;
		printf("TYPE=%s\n", pramfs_idinfo.name);
		return 0;
	}
	return 2;
}
