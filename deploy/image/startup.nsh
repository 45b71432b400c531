@echo -off
# Runs when the firmware finds nothing that starts and comes to its shell: a kernel that is none, an entry whose file is
# gone. The loader has counted that boot, so another one leads to the old image in the end.
echo "evenkeel: nothing starts; resetting"
stall 3000000
reset
