@echo -off
# The firmware runs this script in its shell if nothing else starts: an invalid kernel, or an entry whose file is missing.
# The loader has counted that boot, so further resets lead back to the old image.
echo "evenkeel: no bootable image; resetting"
stall 3000000
reset
